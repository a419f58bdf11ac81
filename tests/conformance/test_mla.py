"""Latent attention, bit for bit on one target: a prompt and its chunks, a row alone and in a batch."""

from typing import Any

import pytest

from conformance.mla_prompt import LENGTH, Prompt
from conformance.same_results import assert_same
from sporelm import ops
from sporelm.evals.conformance.conformance_case import On
from sporelm.evals.conformance.mla import COMMON, Latents


@pytest.mark.parametrize("shape", COMMON, ids=str)
def test_chunks_are_the_whole(cpu: Any, shape: Latents) -> None:
    """Chunks of one are decoding: the kernel that splits positions equals the one that tiles rows."""
    prompt = Prompt(cpu, shape)
    (whole,) = prompt.rows((0, LENGTH))
    for place in (0, 15, 16, 63, 64, 255, 256, 511, 599):
        assert_same(prompt.rows((place, place + 1))[0], whole[place : place + 1])
    alone, several = prompt.rows((599, 600), (300, 333))
    assert_same(alone, whole[599:])
    assert_same(several, whole[300:333])


@pytest.mark.parametrize(("format_name", "width"), [("F32", 20), ("Q8_0", 64), ("Q4_K", 256)])
def test_a_row_times_heads_is_the_same_in_any_batch(cpu: Any, format_name: str, width: int) -> None:
    on = On(cpu, format_name)
    x, weight = on.values(40, 3 * (width + 4)), on.experts(format_name, 3, 33, width)
    whole = ops.linear_heads(on.tensor(x), weight).numpy()
    for batch in (1, 2, 7, 33):
        assert_same(ops.linear_heads(on.tensor(x[3 : 3 + batch]), weight).numpy(), whole[3 : 3 + batch])
