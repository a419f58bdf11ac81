"""Rotary position embedding (RoPE, Su et al. 2021), in the conventions in use."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.paged_attention import check_slots, store_kv
from sporelm.ops.spec import Spec, require_fixed

STYLES = ("half", "adjacent", "halves")
MAX_STREAMS = 8


def rotary_pairs(style: str, rotary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices in a head of the first and the second number of each of its rotary / 2 pairs, int64 [rotary /
    2]."""
    pairs = np.arange(rotary // 2)
    if style == "half":
        return pairs, pairs + rotary // 2
    if style == "adjacent":
        return 2 * pairs, 2 * pairs + 1
    quarter = rotary // 4
    first = pairs + pairs // quarter * quarter
    return first, first + quarter


def rope_spec(
    x: Any, positions: Any, table: Any, *, head_dim: int, style: str, streams: tuple[int, ...] | None = None
) -> Spec:
    """Return the result spec of `rope`."""
    wide, angles = check_rows("x", x), check_rows("table", table)
    where = check_ints("positions", positions, rank=1 if streams is None else 2)
    require(style in STYLES, f"rope style {style!r} must be one of {STYLES}")
    require(require_fixed(wide.shape[1]) % head_dim == 0, f"x {wide} must be whole heads of {head_dim}")
    rotary = require_fixed(angles.shape[1])
    require(rotary <= head_dim and rotary % 2 == 0, f"table {angles} must rotate an even part of a head")
    require(style != "halves" or rotary % 4 == 0, f"table {angles} must rotate pairs in both halves: a multiple of 4")
    if streams is None:
        require(where.shape == wide.shape[:1], f"positions {where} must have one element a row of x {wide}")
        return wide
    require(where.shape[0] == wide.shape[0], f"positions {where} must have one row a row of x {wide}")
    count = require_fixed(where.shape[1])
    require(count <= MAX_STREAMS, f"positions {where} must have at most {MAX_STREAMS} columns")
    known = len(streams) == rotary // 2 and all(0 <= stream < count for stream in streams)
    require(known, f"streams {streams} must be one of {count} for each of {rotary // 2} pairs")
    return wide


def rope_store_spec(q: Any, k: Any, v: Any, positions: Any, table: Any, cache: Any, slots: Any, **how: Any) -> Spec:
    """Return the result spec of `rope_store`."""
    rope_spec(k, positions, table, **how)
    store_kv.results((k, v, cache, slots), {})
    return rope_spec(q, positions, table, **how)


def check_positions(x: Any, positions: Any, table: Any, **options: Any) -> None:
    """Raise OpError for a position outside the table."""
    check_range("positions", positions.numpy(), 0, table.shape[0])


def check_store_indices(
    q: Any, k: Any, v: Any, positions: Any, table: Any, cache: Any, slots: Any, **options: Any
) -> None:
    """Raise OpError for a position outside the table or a slot outside the cache."""
    check_positions(k, positions, table)
    check_slots(k, v, cache, slots)


@op(rope_spec, indices=check_positions)
def rope(x, positions, table, *, head_dim, style, streams=None):
    """Rotate pairs of each head by the angles of the row's position.

    x [tokens, heads * head_dim], positions int32 [tokens], table float32 [context, rotary]: cosines then sines, half
    the rotary width each. "half" pairs i with i + rotary/2 (Hugging Face), "adjacent" 2i with 2i + 1 (the paper, ggml's
    llama). "halves" applies "half" to each half of the rotated numbers (ChatGLM-6B's two dimensions). Dimensions beyond
    `rotary` stay as they are.

    With `streams` a row has several positions, int32 [tokens, count], and pair i uses number streams[i]: time, height
    and width in Qwen2-VL (Wang et al. 2024).
    """
    half = table.shape[1] // 2
    heads = x.reshape(len(x), -1, head_dim).copy()
    where = positions[:, None] if streams is None else positions[:, list(streams)]  # [tokens, 1 or pairs]
    cosines, sines = (
        part[:, None] for part in (table[where, np.arange(half)], table[where, np.arange(half, 2 * half)])
    )
    first, second = rotary_pairs(style, 2 * half)
    left, right = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = left * cosines - right * sines
    heads[..., second] = right * cosines + left * sines
    return heads.reshape(x.shape)


@op(rope_store_spec, updates=("cache",), indices=check_store_indices)
def rope_store(q, k, v, positions, table, cache, slots, *, head_dim, style, streams=None):
    """Rotate q and k, store k and v in the cache, and return the rotated q."""
    how = {"head_dim": head_dim, "style": style, "streams": streams}
    store_kv.reference(rope.reference(k, positions, table, **how), v, cache, slots)
    return rope.reference(q, positions, table, **how)
