"""The cases of all ops."""

from collections.abc import Sequence
from itertools import chain

from sporelm.evals.conformance import (
    add_lora,
    altup_streams,
    block_conversion,
    collectives,
    cross_attention,
    encoder_attention,
    image_rows,
    linear_experts,
    mla,
    paged_attention,
    quantized_linear,
    recurrent,
    rows,
    sampling,
    selective_scan,
    sparse_mla,
    wkv,
)
from sporelm.evals.conformance.conformance_case import Case
from sporelm.quant import FORMATS

PARTS = (
    rows,
    sampling,
    quantized_linear,
    linear_experts,
    add_lora,
    altup_streams,
    paged_attention,
    mla,
    recurrent,
    wkv,
    selective_scan,
    sparse_mla,
    encoder_attention,
    cross_attention,
    image_rows,
    block_conversion,
    collectives,
)

SAMPLES = 6  # cases of an op, apart from those of a number format

CASES = list(chain.from_iterable(part.cases() for part in PARTS))


def sample_cases() -> list[Case]:
    """Return a short sample: of every op, in every number format, the first and the last of the common cases."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in common_cases():
        first = case.name.partition(" ")[0]
        groups.setdefault((case.op, first if first in FORMATS else ""), []).append(case)
    return [case for (_, format_name), group in groups.items() for case in spread(group, 2 if format_name else SAMPLES)]


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """Return `count` cases from the first to the last, or all if there are fewer."""
    if len(cases) <= count:
        return list(cases)
    return [cases[number * (len(cases) - 1) // (count - 1)] for number in range(count)]


def common_cases() -> list[Case]:
    """Return the cases that the tests run on every CPU target."""
    return [case for case in CASES if case.common and not case.rare]
