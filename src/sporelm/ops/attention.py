"""Attention over a paged cache of keys and values.

A cache has shape [pages, 2, kv_heads, PAGE, head_dim] (keys, then values); how its bytes lie is the back-end's matter.
One of Q8_0 holds blocks of 32 numbers along head_dim: writing rounds to them, reading sees what they stand for.
A slot is page * PAGE + offset. Several sequences share a step: `starts` says which rows are whose.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.arguments import ints, rows, vector, within
from sporelm.ops.cache import KV_TYPES, held_in, put
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed, spec_of

PAGE = 64  # positions a page


def page_shape(kept: Sequence[int]) -> tuple[int, ...]:
    """The logical shape of a page: of keys and values, kept as (kv_heads, head_dim), or of one row that all heads
    share (ops/latent.py), kept as (width,)."""
    if len(kept) == 1:
        return 1, 1, PAGE, kept[0]
    kv_heads, head_dim = kept
    return 2, kv_heads, PAGE, head_dim


def cache_spec(cache: Any) -> Spec:
    """The spec of a cache [pages, 2, kv_heads, PAGE, head_dim] of one of KV_TYPES. Raises OpError for another."""
    pages = spec_of(cache)
    shaped = len(pages.shape) == 5 and (pages.shape[1], pages.shape[3]) == (2, PAGE)
    require(shaped, f"cache {pages} must be [pages, 2, kv_heads, {PAGE}, head_dim]")
    require(pages.dtype in KV_TYPES.values(), f"cache {pages} must hold one of {', '.join(KV_TYPES)}")
    return pages


def stored(k: Any, v: Any, cache: Any, slots: Any) -> tuple[Spec, ...]:
    """Rule of `store_kv`: no result."""
    keys, values, pages, where = rows("k", k), rows("v", v), cache_spec(cache), ints("slots", slots)
    width = fixed(pages.shape[2]) * fixed(pages.shape[4])
    require(keys == values and keys.shape[1] == width, f"k {keys} and v {values} must both have {width} columns")
    require(where.shape == keys.shape[:1], f"slots {where} must have one element a row of k {keys}")
    return ()


def slots_inside(k: Any, v: Any, cache: Any, slots: Any) -> None:
    """Raise OpError for a slot outside the cache."""
    within("slots", slots.numpy(), 0, cache.shape[0] * PAGE)


def attended(
    q: Any,
    cache: Any,
    starts: Any,
    lengths: Any,
    pages: Any,
    sinks: Any = None,
    slopes: Any = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Spec:
    """Rule of `attention`."""
    queries, store = rows("q", q), cache_spec(cache)
    ints("starts", starts)
    counts, tables = ints("lengths", lengths), ints("pages", pages, rank=2)
    require(counts.shape == tables.shape[:1], f"pages {tables} must have one row an element of lengths {counts}")
    head_dim, kv_heads = fixed(store.shape[4]), fixed(store.shape[2])
    require(head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    whole = fixed(queries.shape[1]) % (head_dim * kv_heads) == 0
    require(whole, f"q {queries} must be whole groups of {kv_heads} x {head_dim}")
    heads = fixed(queries.shape[1]) // head_dim
    for name, numbers in (("sinks", sinks), ("slopes", slopes)):
        if numbers is not None:
            given = vector(name, numbers)
            require(given.shape == (heads,), f"{name} {given} must have one element a head: {heads}")
    require(window is None or window > 0, f"window {window} must be positive")
    require(chunk is None or chunk > 0, f"chunk {chunk} must be positive")
    require(window is None or chunk is None, f"window {window} and chunk {chunk}: a row has one of them at most")
    require(softcap is None or 0 < softcap < np.inf, f"softcap {softcap} must be positive")
    return queries


def sequences_inside(q: Any, cache: Any, starts: Any, lengths: Any, pages: Any, *numbers: Any, **options: Any) -> None:
    """Raise OpError for rows outside q, lengths past the page table, or pages outside the cache."""
    first, held, table = starts.numpy(), lengths.numpy(), pages.numpy()
    counts = np.diff(first.astype(np.int64))
    ordered = len(first) == len(held) + 1 and first[0] == 0 and first[-1] == q.shape[0] and (counts >= 0).all()
    wanted = f"rise from 0 to the {q.shape[0]} rows of q in {len(held) + 1} elements"
    require(bool(ordered), f"starts {first.tolist()[:8]} must {wanted}")
    within("lengths", held, 0, table.shape[1] * PAGE + 1)
    for index in np.flatnonzero(held < counts):
        raise OpError(f"lengths[{index}] is less than the sequence's rows in this step")
    used = np.arange(table.shape[1]) < -(-held[:, None] // PAGE)
    within("pages", np.where(used, table, 0), 0, cache.shape[0])


@op(stored, updates=("cache",), indices=slots_inside)
def store_kv(k, v, cache, slots):  # k, v [tokens, kv_heads * head_dim], slots int32 [tokens]
    """Write each row's keys and values to its slot; two rows of a step never share one."""
    page, offset = slots // PAGE, slots % PAGE
    shape = (len(k), cache.shape[2], cache.shape[4])
    put(cache, page, 0, offset, k.reshape(shape))
    put(cache, page, 1, offset, v.reshape(shape))
    return ()


@op(attended, indices=sequences_inside, host=("starts", "lengths"))
def attention(
    q, cache, starts, lengths, pages, sinks=None, slopes=None, *, scale, window=None, softcap=None, chunk=None
):
    """Causal softmax(q k / sqrt) v of each sequence's rows over its own pages, grouped queries (Ainslie et al. 2023).

    q [tokens, heads * head_dim]; starts int32 [sequences + 1], rows starts[s]:starts[s+1] are the last ones of
    sequence s; lengths int32 [sequences], positions held in the cache, those rows included; pages int32 [sequences,
    max_pages], its page table. A row at position p sees positions p - window < i <= p (all i <= p without a window);
    with `chunk` those of its own chunk of so many positions, up to its own (Llama 4).

    sinks float32 [heads], if given, are one score more for each row of a head, of a key whose value is zero (gpt-oss,
    after Xiao et al. 2024). softcap, if given, bounds scores: softcap * tanh(score / softcap) (Gemma 2). slopes
    float32 [heads], if given, lower the score of a key by slope * (p - i) after that (ALiBi, Press et al. 2022).
    """
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    out = np.zeros(q.shape, np.float32)
    for sequence, length in enumerate(lengths):
        new = slice(starts[sequence], starts[sequence + 1])
        count = new.stop - new.start
        if count == 0:
            continue
        held = held_in(cache, pages[sequence, : -(-length // PAGE)])  # [pages, 2, kv_heads, PAGE, head_dim]
        keys, values = held.transpose(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, :length]
        heads = q[new].reshape(count, kv_heads, -1, head_dim)
        scores = np.einsum("tkgd,kpd->tkgp", heads * np.float32(scale), keys)
        if softcap is not None:
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        place, row = np.arange(length), np.arange(length - count, length)[:, None]
        if slopes is not None:
            scores = scores + slopes.reshape(kv_heads, -1, 1) * (place - row).astype(np.float32)[:, None, None]
        seen = place <= row if window is None else (place <= row) & (place > row - window)
        seen = seen if chunk is None else seen & (place >= row // chunk * chunk)
        scores = np.where(seen[:, None, None], scores, -np.inf)
        peak, total = scores.max(axis=-1, keepdims=True), np.float32(0)
        if sinks is not None:
            sink = sinks.reshape(kv_heads, -1, 1)
            peak = np.maximum(peak, sink)
            total = np.exp(sink - peak)
        weights = np.exp(scores - peak)
        weights /= weights.sum(axis=-1, keepdims=True) + total
        used = np.where(np.expand_dims(seen.any(axis=0), -1), values, 0)
        out[new] = np.einsum("tkgp,kpd->tkgd", weights, used).reshape(count, -1)
    return out
