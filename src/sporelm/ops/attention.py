"""Attention over a paged cache of keys and values.

A cache has shape [pages, 2, kv_heads, PAGE, head_dim] (keys, then values); how its bytes lie is the back-end's matter.
A slot is page * PAGE + offset. Several sequences share a step: `starts` says which rows are whose.
"""

from typing import Any

import numpy as np

from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed, spec_of

PAGE = 64  # positions a page


def stored(k: Any, v: Any, cache: Any, slots: Any) -> tuple[Spec, ...]:
    """Rule of `store_kv`: no result."""
    keys, values, pages = spec_of(k), spec_of(v), spec_of(cache)
    require(len(pages.shape) == 5, f"cache {pages} must be [pages, 2, kv_heads, {PAGE}, head_dim]")
    width = fixed(pages.shape[2]) * fixed(pages.shape[4])
    require(keys == values and keys.shape[1] == width, f"k {keys} and v {values} must both have {width} columns")
    require(spec_of(slots).shape == keys.shape[:1], f"slots {spec_of(slots)} must have one element a row of k {keys}")
    return ()


def attended(
    q: Any, cache: Any, starts: Any, lengths: Any, pages: Any, *, scale: float, window: int | None = None
) -> Spec:
    """Rule of `attention`."""
    queries, store = spec_of(q), spec_of(cache)
    head_dim, kv_heads = fixed(store.shape[4]), fixed(store.shape[2])
    require(head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    whole = fixed(queries.shape[1]) % (head_dim * kv_heads) == 0
    require(whole, f"q {queries} must be whole groups of {kv_heads} x {head_dim}")
    require(window is None or window > 0, f"window {window} must be positive")
    return queries


@op(stored, updates=("cache",))
def store_kv(k, v, cache, slots):  # k, v [tokens, kv_heads * head_dim], slots int32 [tokens]
    """Write each row's keys and values to its slot."""
    page, offset = slots // PAGE, slots % PAGE
    shape = (len(k), cache.shape[2], cache.shape[4])
    cache[page, 0, :, offset] = k.reshape(shape)
    cache[page, 1, :, offset] = v.reshape(shape)
    return ()


@op(attended)
def attention(q, cache, starts, lengths, pages, *, scale, window=None):
    """Causal softmax(q k / sqrt) v of each sequence's rows over its own pages, grouped queries (Ainslie et al. 2023).

    q [tokens, heads * head_dim]; starts int32 [sequences + 1], rows starts[s]:starts[s+1] are the last ones of
    sequence s; lengths int32 [sequences], positions held in the cache, those rows included; pages int32 [sequences,
    max_pages], its page table. A row at position p sees positions p - window < i <= p (all i <= p without a window).
    """
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    out = np.zeros(q.shape, np.float32)
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        count = rows.stop - rows.start
        if count == 0:
            continue
        held = cache[pages[sequence, : -(-length // PAGE)]].astype(np.float32)  # [pages, 2, kv_heads, PAGE, head_dim]
        keys, values = held.transpose(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, :length]
        heads = q[rows].reshape(count, kv_heads, -1, head_dim)
        scores = np.einsum("tkgd,kpd->tkgp", heads * np.float32(scale), keys)
        place, row = np.arange(length), np.arange(length - count, length)[:, None]
        seen = place <= row if window is None else (place <= row) & (place > row - window)
        scores = np.where(seen[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        used = np.where(np.expand_dims(seen.any(axis=0), -1), values, 0)
        out[rows] = np.einsum("tkgp,kpd->tkgd", weights, used).reshape(count, -1)
    return out
