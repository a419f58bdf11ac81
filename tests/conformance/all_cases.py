"""The cases of all ops, and how their results are compared."""

import itertools

import numpy as np

from close import assert_close
from conformance import (
    cases_add_lora,
    cases_altup_streams,
    cases_block_conversion,
    cases_encoder_attention,
    cases_linear_experts,
    cases_mla,
    cases_paged_attention,
    cases_quantized_linear,
    cases_recurrent,
    cases_rows,
    cases_sampling,
    cases_selective_scan,
    cases_sparse_mla,
    cases_wkv,
)
from conformance.case import Arrays

PARTS = (
    cases_rows,
    cases_sampling,
    cases_quantized_linear,
    cases_linear_experts,
    cases_add_lora,
    cases_altup_streams,
    cases_paged_attention,
    cases_mla,
    cases_recurrent,
    cases_wkv,
    cases_selective_scan,
    cases_sparse_mla,
    cases_encoder_attention,
    cases_block_conversion,
)


CASES = list(itertools.chain.from_iterable(part.cases() for part in PARTS))


def assert_agrees(actual: Arrays, expected: Arrays, exact: bool) -> None:
    """Within the table's tolerance of the result's magnitude, or bit for bit; NaN and infinity at the same places."""
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        finite = np.abs(right[np.isfinite(right)], dtype=np.float64)
        magnitude = 1.0 if exact else float(finite.max(initial=0)) or 1.0
        shares = [array.astype(np.float64) / magnitude for array in (left, right)]
        assert_close(*shares, "exact" if exact else "f32")
