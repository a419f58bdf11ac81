"""The top-k indexer of sparse attention (DeepSeek-AI 2025, "DeepSeek-V3.2": the lightning indexer).

The indexer keeps one key per position, in a cache like that of latent rows (ops/mla.py), [pages, 1, 1, PAGE, width],
with the same page numbers. It selects slots, page * PAGE + offset. Attention to them needs no page table, and may be in
another layer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.argument_checks import check_ints, check_rows
from sporelm.ops.canonical_pages import read_pages, write_rows
from sporelm.ops.mla import check_latent_cache
from sporelm.ops.op import op, require
from sporelm.ops.paged_attention import PAGE, check_pages, check_slots
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import I32

NO_SLOT = -1  # fills the list of a row that sees fewer positions


def _store_rows_spec(x: Any, cache: Any, slots: Any) -> tuple[Spec, ...]:
    given, pages, where = check_rows("x", x), check_latent_cache(cache), check_ints("slots", slots)
    require(given.shape[1] == pages.shape[4], f"x {given} must be as wide as the rows of cache {pages}")
    require(where.shape == given.shape[:1], f"slots {where} must have one element a row of x {given}")
    return ()


def _check_store_indices(x: Any, cache: Any, slots: Any) -> None:
    check_slots(x, x, cache, slots)


def _topk_indexer_spec(q: Any, weights: Any, cache: Any, starts: Any, lengths: Any, pages: Any, *, k: int) -> Spec:
    queries, shares, store = check_rows("q", q), check_rows("weights", weights), check_latent_cache(cache)
    check_ints("starts", starts)
    counts, tables = check_ints("lengths", lengths), check_ints("pages", pages, rank=2)
    require(counts.shape == tables.shape[:1], f"pages {tables} must have one row an element of lengths {counts}")
    require(queries.shape[0] == shares.shape[0], f"q {queries} and weights {shares} must have as many rows")
    heads, width = require_fixed(shares.shape[1]), require_fixed(store.shape[4])
    require(queries.shape[1] == heads * width, f"q {queries} must be {heads} heads of {width}, as wide as the keys")
    require(k >= 1, f"k {k} must be at least 1")
    return Spec((queries.shape[0], k), I32)


def _check_attention_indices(q: Any, weights: Any, *places: Any, **options: Any) -> None:
    check_pages(q, *places)


@op(_store_rows_spec, updates=("cache",), indices=_check_store_indices)
def store_rows(x, cache, slots):
    """Write each row of x [tokens, width] to its slot, int32 [tokens]. Two rows of a step never share a slot."""
    write_rows(cache, slots // PAGE, 0, slots % PAGE, x[:, None])
    return ()


@op(_topk_indexer_spec, indices=_check_attention_indices, host=("starts", "lengths"))
def topk_indexer(q, weights, cache, starts, lengths, pages, *, k):
    """Return the slots of the k positions with the highest indexer scores for each row, int32 [tokens, k].

    q [tokens, heads * width], weights [tokens, heads], cache [pages, 1, 1, PAGE, width] of keys; starts, lengths and
    pages as in `attention`. For a row at position p, the score of i <= p is the sum over heads of weight * relu(q key).
    Among equal scores the earlier position wins; NaN is lower than all numbers. Slots are in the order of positions. A
    row with at most k positions lists them all, followed by NO_SLOT.
    """
    width = cache.shape[4]
    out = np.full((len(q), k), NO_SLOT, np.int32)
    for sequence, length in enumerate(lengths):
        table = pages[sequence, : -(-length // PAGE)]
        held = read_pages(cache, table).reshape(-1, width)[:length]
        slots = (table[:, None].astype(np.int64) * PAGE + np.arange(PAGE)).reshape(-1)
        for row in range(starts[sequence], starts[sequence + 1]):
            count = length - (starts[sequence + 1] - 1 - row)
            scores = _score_positions(q[row].reshape(-1, width), weights[row], held[:count])
            places = np.sort(np.argsort(-scores, kind="stable")[:k])
            out[row, : len(places)] = slots[places]
    return out


def _score_positions(
    q: NDArray[np.float32], weights: NDArray[np.float32], keys: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the scores of one row, float32 [positions]: q [heads, width], weights [heads], keys [positions, width]."""
    scores = weights @ np.maximum(q @ keys.T, 0)
    found: NDArray[np.float32] = np.where(np.isnan(scores), -np.inf, scores)
    return found
