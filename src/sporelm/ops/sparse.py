"""Sparse attention over latent rows: a row sees the positions that an indexer scores highest (DeepSeek-AI 2025,
"DeepSeek-V3.2": the lightning indexer and its fine-grained choice of tokens).

The indexer keeps one key a position, in a cache like that of latent rows (ops/latent.py), [pages, 1, 1, PAGE, width],
whose pages are numbered alike. What is chosen is said as slots, page * PAGE + offset, so that who attends to them
needs no page table, and may be another layer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.arguments import ints, rows, within
from sporelm.ops.attention import PAGE, sequences_inside, slots_inside
from sporelm.ops.cache import held_in, put
from sporelm.ops.latent import latent_cache, looked_at
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import I32

NONE = -1  # in place of a slot, behind those of a row that sees fewer


def _stored(x: Any, cache: Any, slots: Any) -> tuple[Spec, ...]:
    given, pages, where = rows("x", x), latent_cache(cache), ints("slots", slots)
    require(given.shape[1] == pages.shape[4], f"x {given} must be as wide as the rows of cache {pages}")
    require(where.shape == given.shape[:1], f"slots {where} must have one element a row of x {given}")
    return ()


def _places_inside(x: Any, cache: Any, slots: Any) -> None:
    slots_inside(x, x, cache, slots)


def _chosen(q: Any, weights: Any, cache: Any, starts: Any, lengths: Any, pages: Any, *, k: int) -> Spec:
    queries, shares, store = rows("q", q), rows("weights", weights), latent_cache(cache)
    ints("starts", starts)
    counts, tables = ints("lengths", lengths), ints("pages", pages, rank=2)
    require(counts.shape == tables.shape[:1], f"pages {tables} must have one row an element of lengths {counts}")
    require(queries.shape[0] == shares.shape[0], f"q {queries} and weights {shares} must have as many rows")
    heads, width = fixed(shares.shape[1]), fixed(store.shape[4])
    require(queries.shape[1] == heads * width, f"q {queries} must be {heads} heads of {width}, as wide as the keys")
    require(k >= 1, f"k {k} must be at least 1")
    return Spec((queries.shape[0], k), I32)


def _sequences_inside(q: Any, weights: Any, *places: Any, **options: Any) -> None:
    sequences_inside(q, *places)


def _attended(latent: Any, q: Any, cache: Any, chosen: Any, *, heads: int, scale: float) -> Spec:
    absorbed, slots = looked_at(latent, q, cache, heads), ints("chosen", chosen, rank=2)
    require(absorbed.shape[0] == slots.shape[0], f"latent {absorbed} and chosen {slots} must have as many rows")
    return absorbed


def _chosen_inside(latent: Any, q: Any, cache: Any, chosen: Any, **options: Any) -> None:
    slots = chosen.numpy()
    within("chosen", slots, NONE, cache.shape[0] * PAGE)
    there = slots != NONE
    packed = there[:, :1].all() and (there[:, 1:] <= there[:, :-1]).all()
    require(bool(packed), f"chosen must have a slot in each row, and {NONE} only behind the last one")


@op(_stored, updates=("cache",), indices=_places_inside)
def store_rows(x, cache, slots):
    """Write each row of x [tokens, width] to its slot, int32 [tokens], of which no two of a step are the same."""
    put(cache, slots // PAGE, 0, slots % PAGE, x[:, None])
    return ()


@op(_chosen, indices=_sequences_inside, host=("starts", "lengths"))
def choose_slots(q, weights, cache, starts, lengths, pages, *, k):
    """The slots of the k positions that an indexer scores highest for each row, int32 [tokens, k].

    q [tokens, heads * width], weights [tokens, heads], cache [pages, 1, 1, PAGE, width] of keys; starts, lengths and
    pages are those of `attention`. A row at position p scores i <= p by the sum over heads of weight * relu(q key).
    Of equal scores the earlier position counts, and NaN is lower than all numbers. Slots stand in the order of their
    positions; a row with no more than k positions has them all, and NONE behind them.
    """
    width = cache.shape[4]
    out = np.full((len(q), k), NONE, np.int32)
    for sequence, length in enumerate(lengths):
        table = pages[sequence, : -(-length // PAGE)]
        held = held_in(cache, table).reshape(-1, width)[:length]
        slots = (table[:, None].astype(np.int64) * PAGE + np.arange(PAGE)).reshape(-1)
        for row in range(starts[sequence], starts[sequence + 1]):
            count = length - (starts[sequence + 1] - 1 - row)
            scores = _scores(q[row].reshape(-1, width), weights[row], held[:count])
            places = np.sort(np.argsort(-scores, kind="stable")[:k])
            out[row, : len(places)] = slots[places]
    return out


def _scores(q: NDArray[np.float32], weights: NDArray[np.float32], keys: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [positions] of one row: q [heads, width], weights [heads], keys [positions, width]."""
    scores = weights @ np.maximum(q @ keys.T, 0)
    found: NDArray[np.float32] = np.where(np.isnan(scores), -np.inf, scores)
    return found


@op(_attended, indices=_chosen_inside)
def chosen_attention(latent, q, cache, chosen, *, heads, scale):
    """Softmax of scores with the rows in the chosen slots, times those rows' latents: [tokens, heads * rank].

    As `latent_attention`, of which latent, q, cache, heads and scale are; chosen int32 [tokens, k] are slots, in the
    order in which they are summed, and NONE behind the last. With all of a row's positions it is the same, bit for bit.
    """
    rank, width = latent.shape[1] // heads, cache.shape[4]
    turned = q.reshape(len(q), heads, -1)[..., : width - rank]
    whole = np.concatenate([latent.reshape(len(q), heads, rank), turned], axis=2) * np.float32(scale)
    out = np.zeros((len(q), heads, rank), np.float32)
    for row, slots in enumerate(chosen):
        seen = slots[slots != NONE]
        used, where = np.unique(seen // PAGE, return_inverse=True)
        held = held_in(cache, used)[where, 0, 0, seen % PAGE]
        scores = whole[row] @ held.T
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[row] = weights / weights.sum(axis=-1, keepdims=True) @ held[:, :rank]
    return out.reshape(len(q), -1)
