"""Sparse attention, bit for bit on one target: what is chosen and what is made of it depend on no other row."""

from typing import Any

import numpy as np
import pytest

from conformance.mla_prompt import LENGTH, Prompt
from conformance.same_results import assert_same
from sporelm import ops
from sporelm.errors import BackendError
from sporelm.evals.conformance.conformance_case import On
from sporelm.evals.conformance.mla import COMMON, Latents
from sporelm.evals.conformance.paged_attention import page_tables
from sporelm.ops.canonical_pages import KV_TYPES, to_canonical
from sporelm.ops.paged_attention import PAGE


@pytest.mark.parametrize("shape", COMMON, ids=str)
def test_all_positions_are_attention_without_a_choice(cpu: Any, shape: Latents) -> None:
    """Rows that see all of theirs, alone and many at a time: both kernels are those of dense attention."""
    prompt = Prompt(cpu, shape)
    for first, last in ((0, LENGTH), (63, 65), (LENGTH - 1, LENGTH)):
        (dense,) = prompt.rows((first, last))
        slots = prompt.table[0, np.arange(LENGTH) // PAGE] * PAGE + np.arange(LENGTH) % PAGE
        seen = np.arange(LENGTH) <= np.arange(first, last)[:, None]
        chosen = prompt.on.ints(np.where(seen, slots, -1))
        queries = [prompt.on.tensor(each[first:last]) for each in prompt.queries]
        found = ops.sparse_mla(*queries, prompt.cache, chosen, heads=shape.heads, scale=0.2)
        assert_same(found.numpy(), dense)


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "fp8", "q8_0"])
def test_a_row_chooses_the_same_in_any_company(cpu: Any, kv: str) -> None:
    """Scores that are rounded: of some positions they differ in their last bits alone."""
    on, heads, width, dtype = On(cpu, kv), 5, 24, KV_TYPES[kv]
    table = page_tables(on, (LENGTH,))
    cache = cpu.allocate_pages(24, [(width,)], dtype)[0]
    keys = on.values(24, 1, 1, PAGE, width, scale=1e-6) + on.values(width)
    cpu.import_pages(cache, range(24), to_canonical(keys, dtype))
    q, weights = on.values(LENGTH, heads * width), on.values(LENGTH, heads)

    def rows(*parts: tuple[int, int]) -> list[np.ndarray]:
        starts = np.cumsum([0, *(last - first for first, last in parts)])
        given = [on.tensor(np.concatenate([each[first:last] for first, last in parts])) for each in (q, weights)]
        numbers = (starts, [last for _, last in parts], np.repeat(table, len(parts), axis=0))
        found = ops.topk_indexer(*given, cache, *(on.ints(each) for each in numbers), k=70).numpy()
        return np.split(found, starts[1:-1])

    (whole,) = rows((0, LENGTH))
    for first, last in ((0, 1), (69, 71), (255, 258), (570, 600), (599, 600)):
        assert_same(rows((first, last))[0], whole[first:last])
    alone, several = rows((599, 600), (300, 333))
    assert_same(alone, whole[599:])
    assert_same(several, whole[300:333])


def test_contexts_without_room_for_scores_are_refused(cpu: Any) -> None:
    on, pages = On(cpu, "room"), 1 << 17
    (cache,) = cpu.allocate_pages(1, [(8,)], KV_TYPES["f16"])
    places = (on.ints([0, 20]), on.ints([20]), on.ints(np.zeros((1, pages), np.int32)))
    with pytest.raises(
        BackendError, match=r"too many positions \(got 8388608; at most 41[0-9]*\). Lower the option max_context"
    ):
        ops.topk_indexer(on.rows(20, 16), on.rows(20, 2), cache, *places, k=5)
