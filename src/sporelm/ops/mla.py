"""Multi-head latent attention (MLA; DeepSeek-AI 2024, "DeepSeek-V2"): all heads attend to one row per position.

A row holds a normed latent vector, from which each head's key and value are projected, and a rotated key that all heads
share. The key projection is absorbed into the queries, the value projection into the output (section 2.1.2 there), so
that keys and values per head are never computed. A cache has the shape [pages, 1, 1, PAGE, width], the latent's `rank`
numbers first.
"""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_rows, check_vector
from sporelm.ops.canonical_pages import KV_TYPES, read_pages, write_rows
from sporelm.ops.norm import rms_norm
from sporelm.ops.op import op, require
from sporelm.ops.paged_attention import PAGE, check_pages, check_slots
from sporelm.ops.rotary_embedding import check_positions, rope
from sporelm.ops.spec import Spec, require_fixed, spec_of


def check_latent_cache(cache: Any) -> Spec:
    """Check that an argument is a cache of latent rows, of one of KV_TYPES."""
    pages = spec_of(cache)
    shaped = len(pages.shape) == 5 and pages.shape[1:4] == (1, 1, PAGE)
    require(shaped, f"cache {pages} must be [pages, 1, 1, {PAGE}, width]")
    require(pages.dtype in KV_TYPES.values(), f"cache {pages} must hold one of {', '.join(KV_TYPES)}")
    return pages


def _store_latent_spec(
    x: Any, weight: Any, positions: Any, table: Any, cache: Any, slots: Any, *, eps: float, style: str
) -> tuple[Spec, ...]:
    given, scale, pages, where = (
        check_rows("x", x),
        check_vector("weight", weight),
        check_latent_cache(cache),
        check_ints("slots", slots),
    )
    width, rank = require_fixed(given.shape[1]), require_fixed(scale.shape[0])
    require(width == pages.shape[4], f"x {given} must be as wide as the rows of cache {pages}")
    require(0 < rank < width, f"weight {scale} must have fewer elements than x {given} has columns")
    require(where.shape == given.shape[:1], f"slots {where} must have one element a row of x {given}")
    key = Spec((given.shape[0], width - rank), given.dtype)
    require((positions is None) == (table is None), "positions and table must be given together, or neither")
    if table is not None:
        rope.results((key, positions, table), {"head_dim": width - rank, "style": style})
    return ()


def _check_store_indices(
    x: Any, weight: Any, positions: Any, table: Any, cache: Any, slots: Any, **options: Any
) -> None:
    if table is not None:
        check_positions(x, positions, table)
    check_slots(x, x, cache, slots)


def _latent_attention_spec(
    latent: Any, q: Any, cache: Any, starts: Any, lengths: Any, pages: Any, *, heads: int, scale: float
) -> Spec:
    absorbed = check_latent_queries(latent, q, cache, heads)
    check_ints("starts", starts)
    counts, tables = check_ints("lengths", lengths), check_ints("pages", pages, rank=2)
    require(counts.shape == tables.shape[:1], f"pages {tables} must have one row an element of lengths {counts}")
    return absorbed


def check_latent_queries(latent: Any, q: Any, cache: Any, heads: int) -> Spec:
    """Return the spec of absorbed queries. Raise OpError unless the queries of `heads` heads fit the cache of latent
    rows."""
    absorbed, queries, store = check_rows("latent", latent), check_rows("q", q), check_latent_cache(cache)
    require(absorbed.shape[0] == queries.shape[0], f"latent {absorbed} and q {queries} must have as many rows")
    for name, given in (("latent", absorbed), ("q", queries)):
        require(require_fixed(given.shape[1]) % heads == 0, f"{name} {given} must be {heads} whole heads")
    rank, head_dim = require_fixed(absorbed.shape[1]) // heads, require_fixed(queries.shape[1]) // heads
    rotary = require_fixed(store.shape[4]) - rank
    require(0 < rotary <= head_dim, f"cache {store} must hold {rank} latent numbers and a key of at most {head_dim}")
    return absorbed


def _check_attention_indices(
    latent: Any, q: Any, cache: Any, starts: Any, lengths: Any, pages: Any, **options: Any
) -> None:
    check_pages(q, cache, starts, lengths, pages)


@op(_store_latent_spec, updates=("cache",), indices=_check_store_indices)
def store_latent(x, weight, positions, table, cache, slots, *, eps, style):
    """Apply a norm to the first part of each row, rotate the rest, and write the row to its slot.

    x [tokens, rank + rotary], weight [rank] of the RMS norm; positions int32 [tokens] and table as in `rope`, or both
    None to rotate nothing; slots int32 [tokens], all different within a step.
    """
    rank = len(weight)
    normed = rms_norm.reference(x[:, :rank], weight, eps=eps)
    turned = x[:, rank:]
    if table is not None:
        turned = rope.reference(turned, positions, table, head_dim=x.shape[1] - rank, style=style)
    write_rows(cache, slots // PAGE, 0, slots % PAGE, np.concatenate([normed, turned], axis=1)[:, None])
    return ()


@op(_latent_attention_spec, indices=_check_attention_indices, host=("starts", "lengths"))
def latent_attention(latent, q, cache, starts, lengths, pages, *, heads, scale):
    """Attend causally to the latent rows of each sequence's pages: [tokens, heads * rank].

    latent [tokens, heads * rank] holds queries with the key projection absorbed. q [tokens, heads * head_dim] holds in
    each head first the rotated query, of the width that a cache row has beyond its `rank` latent numbers. starts,
    lengths and pages as in `attention`.
    """
    rank, width = latent.shape[1] // heads, cache.shape[4]
    turned = q.reshape(len(q), heads, -1)[..., : width - rank]
    whole = np.concatenate([latent.reshape(len(q), heads, rank), turned], axis=2) * np.float32(scale)
    out = np.zeros((len(q), heads, rank), np.float32)
    for sequence, length in enumerate(lengths):
        new = slice(starts[sequence], starts[sequence + 1])
        count = new.stop - new.start
        if count == 0:
            continue
        held = read_pages(cache, pages[sequence, : -(-length // PAGE)]).reshape(-1, width)[:length]
        scores = np.einsum("thd,pd->thp", whole[new], held)
        seen = np.arange(length) <= np.arange(length - count, length)[:, None]
        scores = np.where(seen[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[new] = np.einsum("thp,pd->thd", weights, held[:, :rank])
    return out.reshape(len(q), -1)
