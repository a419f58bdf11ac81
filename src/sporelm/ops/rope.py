"""Rotary position embedding (Su et al. 2021), in both conventions in use."""

from typing import Any

from sporelm.ops.arguments import ints, rows, within
from sporelm.ops.attention import slots_inside, store_kv
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed

STYLES = ("half", "adjacent")


def rotated(x: Any, positions: Any, table: Any, *, head_dim: int, style: str) -> Spec:
    """Rule of `rope`."""
    wide, angles, where = rows("x", x), rows("table", table), ints("positions", positions)
    require(style in STYLES, f"rope style {style!r} must be one of {STYLES}")
    require(fixed(wide.shape[1]) % head_dim == 0, f"x {wide} must be whole heads of {head_dim}")
    rotary = fixed(angles.shape[1])
    require(rotary <= head_dim and rotary % 2 == 0, f"table {angles} must rotate an even part of a head")
    require(where.shape == wide.shape[:1], f"positions {where} must have one element a row of x {wide}")
    return wide


def rotated_and_stored(
    q: Any, k: Any, v: Any, positions: Any, table: Any, cache: Any, slots: Any, *, head_dim: int, style: str
) -> Spec:
    """Rule of `rope_store`."""
    rotated(k, positions, table, head_dim=head_dim, style=style)
    store_kv.results((k, v, cache, slots), {})
    return rotated(q, positions, table, head_dim=head_dim, style=style)


def positions_inside(x: Any, positions: Any, table: Any, **options: Any) -> None:
    """Raise OpError for a position outside the table."""
    within("positions", positions.numpy(), 0, table.shape[0])


def places_inside(q: Any, k: Any, v: Any, positions: Any, table: Any, cache: Any, slots: Any, **options: Any) -> None:
    """Raise OpError for a position outside the table or a slot outside the cache."""
    positions_inside(k, positions, table)
    slots_inside(k, v, cache, slots)


@op(rotated, indices=positions_inside)
def rope(x, positions, table, *, head_dim, style):
    """Rotate pairs of each head by the angles of the row's position.

    x [tokens, heads * head_dim], positions int32 [tokens], table float32 [context, rotary]: cosines then sines, half
    the rotary width each. "half" pairs i with i + rotary/2 (Hugging Face), "adjacent" 2i with 2i + 1 (the paper, ggml's
    llama). Dimensions past `rotary` stay as they are.
    """
    half = table.shape[1] // 2
    heads = x.reshape(len(x), -1, head_dim).copy()
    cosines, sines = table[positions, None, :half], table[positions, None, half:]
    first, second = (
        (slice(0, half), slice(half, 2 * half)) if style == "half" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    left, right = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = left * cosines - right * sines
    heads[..., second] = right * cosines + left * sines
    return heads.reshape(x.shape)


@op(rotated_and_stored, updates=("cache",), indices=places_inside)
def rope_store(q, k, v, positions, table, cache, slots, *, head_dim, style):
    """Rotate q and k, store k and v in the cache, return the rotated q."""
    rotated_k = rope.meaning(k, positions, table, head_dim=head_dim, style=style)
    store_kv.meaning(rotated_k, v, cache, slots)
    return rope.meaning(q, positions, table, head_dim=head_dim, style=style)
