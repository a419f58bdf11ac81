"""LoRA in two kernels with a barrier between them: x times a, and that times b added to y.

Both read a table of the adapters, three words each: the addresses of a and b, and the rank, 0 if there is nothing to
add. A row's sums run in one order, whatever the other rows are.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields

ADAPTER_WORDS = 3  # words of an adapter in the table
RANKS_PER_ITEM = 4  # rows of a that an item of lora_down multiplies
VECTORS_PER_ITEM = 4  # vectors of a row of y per item of lora_up; rows of 64 values hold whole items on every target


def lora_down(target: Any) -> Kernel:
    """Compute h = x @ a[adapter].T. An item is RANKS_PER_ITEM rows of a for one token; tokens without an adapter are
    skipped."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            token, begin = item // f.blocks, item % f.blocks * RANKS_PER_ITEM
            adapter = k.load(i32, f.which, token * 4).sext(i64)
            with k.when(adapter >= 0):
                entry = k.at(f.table, adapter * (8 * ADAPTER_WORDS))
                rank = k.load(i64, entry, 16)
                with k.when(begin < rank):
                    # past the last row it is multiplied again: these sums are not read
                    lines = [k.min(begin + number, rank - 1) * f.a_stride for number in range(RANKS_PER_ITEM)]
                    sums = _products(k, k.at(f.x, token * f.x_stride), k.load_pointer(entry), lines, f)
                    for number, value in enumerate(sums):
                        k.store(value, f.h, token * f.h_stride + (begin + number) * 4)

    text = "x:p x_stride:i which:p table:p a_stride:i blocks:i h:p h_stride:i vectors:i width:i"
    return Kernel("lora_down", parse_fields(text), body)


def _products(k: Builder, row: Val, matrix: Val, lines: list[Val], f: Any) -> list[Val]:
    """Return the products of a row with lines of a matrix; values past the width in the last vector are ignored."""
    places = [k.at(matrix, line) for line in lines]
    sums = [k.zero(k.vf) for _ in places]
    end, wide = f.vectors - 1, 4 * k.lanes
    with k.range(end) as v:
        x = k.load(k.vf, row, v * wide)
        for place, total in zip(places, sums, strict=True):
            total.set(k.fma(x, k.load(k.vf, place, v * wide), total.value))
    inside = (k.iota(k.vi) + k.splat((end * k.lanes).trunc(i32))) < k.splat(f.width.trunc(i32))
    nothing = k.const(k.vf, 0)
    x = k.select(inside, k.load(k.vf, row, end * wide), nothing)
    for place, total in zip(places, sums, strict=True):
        total.set(k.fma(x, k.select(inside, k.load(k.vf, place, end * wide), nothing), total.value))
    return [k.sum(total.value) for total in sums]


def lora_up(target: Any) -> Kernel:
    """Compute out = y + h @ b[adapter], or y. An item is VECTORS_PER_ITEM vectors of one token's row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        with k.range(first, last) as item:
            token, column = item // f.pieces, item % f.pieces * (VECTORS_PER_ITEM * wide)
            adapter = k.load(i32, f.which, token * 4).sext(i64)
            y, out = (k.at(rows, token * f.stride + column) for rows in (f.y, f.out))
            sums = [k.var(k.load(k.vf, y, wide * v)) for v in range(VECTORS_PER_ITEM)]
            with k.when(adapter >= 0):
                entry = k.at(f.table, adapter * (8 * ADAPTER_WORDS))
                rank, h = k.load(i64, entry, 16), k.at(f.h, token * f.h_stride)
                matrix = k.at(k.load_pointer(entry, 8), column)
                with k.range(rank) as number:
                    factor, line = k.broadcast(k.vf, h, number * 4), k.at(matrix, number * f.stride)
                    for v, total in enumerate(sums):
                        total.set(k.fma(factor, k.load(k.vf, line, wide * v), total.value))
            for v, total in enumerate(sums):
                k.store(total.value, out, wide * v)

    return Kernel("lora_up", parse_fields("y:p which:p table:p h:p h_stride:i out:p stride:i pieces:i"), body)
