"""Latent attention, bit for bit on one target: a prompt and its chunks, a row alone and in a batch."""

from typing import Any

import numpy as np
import pytest

from conformance.case import On
from conformance.cases_attention import page_tables
from conformance.cases_latent import COMMON, Latents, filled
from conformance.test_equalities import assert_same
from sporelm import ops

LENGTH = 600


class Prompt:
    """A sequence whose pages are full; any of its rows can be asked for."""

    def __init__(self, cpu: Any, shape: Latents) -> None:
        self.on, self.shape = On(cpu, f"{shape}"), shape
        self.cache, self.table = filled(self.on, shape), page_tables(self.on, (LENGTH,))
        self.queries = [self.on.values(LENGTH, shape.heads * each) for each in (shape.rank, shape.head_dim)]

    def rows(self, *parts: tuple[int, int]) -> list[np.ndarray]:
        """Results of rows first .. last, each part of a sequence of its own over the same pages, in one step."""
        starts = np.cumsum([0, *(last - first for first, last in parts)])
        numbers = (starts, [last for _, last in parts], np.repeat(self.table, len(parts), axis=0))
        given = [self.on.tensor(np.concatenate([each[first:last] for first, last in parts])) for each in self.queries]
        tensors = [self.on.ints(values) for values in numbers]
        found = ops.latent_attention(*given, self.cache, *tensors, heads=self.shape.heads, scale=0.2).numpy()
        return np.split(found, starts[1:-1])


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


@pytest.mark.parametrize(("form", "width"), [("F32", 20), ("Q8_0", 64), ("Q4_K", 256)])
def test_a_row_times_heads_is_the_same_in_any_batch(cpu: Any, form: str, width: int) -> None:
    on = On(cpu, form)
    x, weight = on.values(40, 3 * (width + 4)), on.experts(form, 3, 33, width)
    whole = ops.linear_heads(on.tensor(x), weight).numpy()
    for batch in (1, 2, 7, 33):
        assert_same(ops.linear_heads(on.tensor(x[3 : 3 + batch]), weight).numpy(), whole[3 : 3 + batch])
