"""Rotary embedding, alone and together with the store of keys and values. An item is one head of one token."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64, vec
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.pages import Pages


def rope(target: Any, head_dim: int, rotary: int, style: str) -> Kernel:
    """Rotate every head of every row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            token, head = item // f.heads, item % f.heads
            at = token * f.stride + head * (4 * head_dim)
            rotate(k, k.at(f.x, at), k.at(f.out, at), angles(k, f, token, rotary), head_dim, rotary, style)

    name = f"rope_{head_dim}_{rotary}_{style}"
    return Kernel(name, fields("x:p out:p stride:i heads:i positions:p table:p table_stride:i"), body)


def store_kv(target: Any, pages: Pages) -> Kernel:
    """Keys and values of one kv head of one token to its slot."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            token, head = item // f.kv_heads, item % f.kv_heads
            at = token * f.stride + head * (4 * pages.head_dim)
            slot = k.load(i32, f.slots, token * 4).sext(i64)
            pages.store(k, f.cache, f.page_bytes, slot, head, k.at(f.keys, at), k.at(f.values, at))

    return Kernel(
        f"store_kv_{pages.name}", fields("keys:p values:p stride:i kv_heads:i cache:p page_bytes:i slots:p"), body
    )


def rope_store(target: Any, pages: Pages, rotary: int, style: str) -> Kernel:
    """Heads of q are rotated to `out`; those of k, which follow, are rotated and stored with their v."""
    head_dim = pages.head_dim

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            every = f.heads + f.kv_heads
            token, head = item // every, item % every
            table = angles(k, f, token, rotary)
            is_query = head < f.heads
            kv_head = head - f.heads
            k_at = token * f.kv_stride + kv_head * (4 * head_dim)
            q_at = token * f.stride + head * (4 * head_dim)
            source = k.select(is_query, k.at(f.x, q_at), k.at(f.keys, k_at))
            rotate(k, source, k.select(is_query, k.at(f.out, q_at), scratch), table, head_dim, rotary, style)
            with k.when(head >= f.heads):
                slot = k.load(i32, f.slots, token * 4).sext(i64)
                pages.store(k, f.cache, f.page_bytes, slot, kv_head, scratch, k.at(f.values, k_at))

    text = "x:p out:p stride:i heads:i positions:p table:p table_stride:i keys:p values:p kv_stride:i kv_heads:i"
    text += " cache:p page_bytes:i slots:p"
    name = f"rope_store_{pages.name}_{rotary}_{style}"
    return Kernel(name, fields(text), body, scratch=4 * head_dim + 256)


def angles(k: Builder, f: Any, token: Val, rotary: int) -> tuple[Val, Val]:
    """Addresses of the cosines and sines of a token's position."""
    row = k.at(f.table, k.load(i32, f.positions, token * 4).sext(i64) * f.table_stride)
    return row, k.at(row, 2 * rotary)


def rotate(k: Builder, x: Val, out: Val, table: tuple[Val, Val], head_dim: int, rotary: int, style: str) -> None:
    """One head from `x` to `out`, which may be the same."""
    half = rotary // 2
    pair = _half if style == "half" else _adjacent
    whole = half // k.lanes * k.lanes
    for at in range(0, whole, k.lanes):
        pair(k, x, out, table, at, half, k.lanes)
    for at in range(whole, half):
        pair(k, x, out, table, at, half, 1)
    for at in range(rotary, head_dim):
        k.store(k.load(f32, x, 4 * at), out, 4 * at)


def _turn(k: Builder, left: Val, right: Val, table: tuple[Val, Val], at: int) -> tuple[Val, Val]:
    cosine, sine = (k.load(left.type, base, 4 * at) for base in table)
    return left * cosine - right * sine, right * cosine + left * sine


def _half(k: Builder, x: Val, out: Val, table: tuple[Val, Val], at: int, half: int, lanes: int) -> None:
    kind = vec(f32, lanes) if lanes > 1 else f32
    left, right = _turn(k, k.load(kind, x, 4 * at), k.load(kind, x, 4 * (at + half)), table, at)
    k.store(left, out, 4 * at)
    k.store(right, out, 4 * (at + half))


def _adjacent(k: Builder, x: Val, out: Val, table: tuple[Val, Val], at: int, half: int, lanes: int) -> None:
    if lanes == 1:
        left, right = _turn(k, k.load(f32, x, 8 * at), k.load(f32, x, 8 * at + 4), table, at)
        k.store(left, out, 8 * at)
        k.store(right, out, 8 * at + 4)
        return
    kind = vec(f32, lanes)
    first, second = k.load(kind, x, 8 * at), k.load(kind, x, 8 * at + 4 * lanes)
    even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
    left, right = _turn(k, k.shuffle(first, second, even), k.shuffle(first, second, odd), table, at)
    order = [lane + lanes * side for lane in range(lanes) for side in range(2)]
    k.store(k.shuffle(left, right, order[:lanes]), out, 8 * at)
    k.store(k.shuffle(left, right, order[lanes:]), out, 8 * at + 4 * lanes)
