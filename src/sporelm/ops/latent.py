"""Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): all heads attend to one row a position.

The row is a normed latent, of which each head's key and value are made, and a rotated key that all heads share. What
makes keys of the latent is multiplied into the queries instead, what makes values into the mixed latents ("absorbed",
section 2.1.2 there): keys and values of heads never exist. A cache has shape [pages, 1, 1, PAGE, width], the latent's
`rank` numbers first.
"""

from typing import Any

import numpy as np

from sporelm.ops.arguments import ints, rows, vector
from sporelm.ops.attention import PAGE, sequences_inside, slots_inside
from sporelm.ops.cache import KV_TYPES, held_in, put
from sporelm.ops.norm import rms_norm
from sporelm.ops.op import op, require
from sporelm.ops.rope import positions_inside, rope
from sporelm.ops.spec import Spec, fixed, spec_of


def latent_cache(cache: Any) -> Spec:
    """The spec of a cache of latent rows, of one of KV_TYPES. Raises OpError for another."""
    pages = spec_of(cache)
    shaped = len(pages.shape) == 5 and pages.shape[1:4] == (1, 1, PAGE)
    require(shaped, f"cache {pages} must be [pages, 1, 1, {PAGE}, width]")
    require(pages.dtype in KV_TYPES.values(), f"cache {pages} must hold one of {', '.join(KV_TYPES)}")
    return pages


def _stored(
    x: Any, weight: Any, positions: Any, table: Any, cache: Any, slots: Any, *, eps: float, style: str
) -> tuple[Spec, ...]:
    given, scale, pages, where = rows("x", x), vector("weight", weight), latent_cache(cache), ints("slots", slots)
    width, rank = fixed(given.shape[1]), fixed(scale.shape[0])
    require(width == pages.shape[4], f"x {given} must be as wide as the rows of cache {pages}")
    require(0 < rank < width, f"weight {scale} must have fewer elements than x {given} has columns")
    require(where.shape == given.shape[:1], f"slots {where} must have one element a row of x {given}")
    key = Spec((given.shape[0], width - rank), given.dtype)
    require((positions is None) == (table is None), "positions and table must be given together, or neither")
    if table is not None:
        rope.results((key, positions, table), {"head_dim": width - rank, "style": style})
    return ()


def _places_inside(x: Any, weight: Any, positions: Any, table: Any, cache: Any, slots: Any, **options: Any) -> None:
    if table is not None:
        positions_inside(x, positions, table)
    slots_inside(x, x, cache, slots)


def _attended(
    latent: Any, q: Any, cache: Any, starts: Any, lengths: Any, pages: Any, *, heads: int, scale: float
) -> Spec:
    absorbed = looked_at(latent, q, cache, heads)
    ints("starts", starts)
    counts, tables = ints("lengths", lengths), ints("pages", pages, rank=2)
    require(counts.shape == tables.shape[:1], f"pages {tables} must have one row an element of lengths {counts}")
    return absorbed


def looked_at(latent: Any, q: Any, cache: Any, heads: int) -> Spec:
    """The spec of queries of `heads` heads that fit a cache of latent rows. Raises OpError for others."""
    absorbed, queries, store = rows("latent", latent), rows("q", q), latent_cache(cache)
    require(absorbed.shape[0] == queries.shape[0], f"latent {absorbed} and q {queries} must have as many rows")
    for name, given in (("latent", absorbed), ("q", queries)):
        require(fixed(given.shape[1]) % heads == 0, f"{name} {given} must be {heads} whole heads")
    rank, head_dim = fixed(absorbed.shape[1]) // heads, fixed(queries.shape[1]) // heads
    rotary = fixed(store.shape[4]) - rank
    require(0 < rotary <= head_dim, f"cache {store} must hold {rank} latent numbers and a key of at most {head_dim}")
    return absorbed


def _sequences_inside(latent: Any, q: Any, cache: Any, starts: Any, lengths: Any, pages: Any, **options: Any) -> None:
    sequences_inside(q, cache, starts, lengths, pages)


@op(_stored, updates=("cache",), indices=_places_inside)
def store_latent(x, weight, positions, table, cache, slots, *, eps, style):
    """Norm each row's first numbers, rotate the others, and write the row to its slot.

    x [tokens, rank + rotated], weight [rank] of the norm by root mean square; positions int32 [tokens] and table as for
    `rope`, or None: nothing is rotated; slots int32 [tokens], of which no two of a step are the same.
    """
    rank = len(weight)
    normed = rms_norm.meaning(x[:, :rank], weight, eps=eps)
    turned = x[:, rank:]
    if table is not None:
        turned = rope.meaning(turned, positions, table, head_dim=x.shape[1] - rank, style=style)
    put(cache, slots // PAGE, 0, slots % PAGE, np.concatenate([normed, turned], axis=1)[:, None])
    return ()


@op(_attended, indices=_sequences_inside, host=("starts", "lengths"))
def latent_attention(latent, q, cache, starts, lengths, pages, *, heads, scale):
    """Causal softmax of scores with the rows of each sequence's pages, times the rows' latents: [tokens, heads * rank].

    latent [tokens, heads * rank], queries after the matrix that makes keys; q [tokens, heads * head_dim], of each head
    of which the first numbers are the rotated query, as many as a row of the cache has after its `rank` latent ones.
    starts, lengths and pages are those of `attention`.
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
        held = held_in(cache, pages[sequence, : -(-length // PAGE)]).reshape(-1, width)[:length]
        scores = np.einsum("thd,pd->thp", whole[new], held)
        seen = np.arange(length) <= np.arange(length - count, length)[:, None]
        scores = np.where(seen[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[new] = np.einsum("thp,pd->thd", weights, held[:, :rank])
    return out.reshape(len(q), -1)
