"""Kernels that measure the machine's peak rates: reading memory, and arithmetic in one register tile."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.targets.cpu_target import Totals, Words
from sporelm.backends.cpu.targets.tiles import TileSize

BLOCK = 4096  # bytes an item of `stream`
CHAINS = 10  # independent accumulators, more than the latency of a product needs
WORDS = 8  # vectors of weights in a block of 32 columns
ROW_BYTES = 4096 + 64  # bytes from one row of activations to the next, in other sets of the cache


def stream(target: Any, ahead: int) -> Kernel:
    """Read memory once, prefetching `ahead` bytes in advance (0: no prefetch). An item is a 4 KB block."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        sums = [k.zero(k.vi) for _ in range(4)]
        with k.range(first * BLOCK, last * BLOCK, 16 * wide) as at:
            for line in range(16):
                if ahead:
                    k.prefetch(f.source, at + (ahead + wide * line))
                total = sums[line % 4]
                total.set(total.value + k.load(k.vi, f.source, at + wide * line))
        k.store(sums[0].value + sums[1].value + sums[2].value + sums[3].value, scratch)

    return Kernel(f"limit_stream_{ahead}", parse_fields("source:p"), body, scratch=64)


def dots(target: Any, largest: int, tile: TileSize, *, is_wide: bool = False) -> Kernel:
    """Compute integer dot products of weight bytes up to `largest` (or SIGNED), which come from memory in blocks of 32
    columns, with rows of activations. An item is `blocks` of them.

    `is_wide`: weights and activations are pairs of 16 bits, twice as many vectors.
    """
    panels, tokens = tile
    count = WORDS * (1 + is_wide)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        places = [[wide * (panels * t + p) for p in range(panels)] for t in range(tokens)]
        sums = [[k.var(k.load(k.vi, scratch, place)) for place in row] for row in places]
        with k.range(first, last), k.range(f.blocks) as block:
            here = k.opaque(k.at(f.source, block * (count * panels * wide)))
            rows = [k.opaque(k.at(f.rows, block * (4 * count) + ROW_BYTES * t)) for t in range(tokens)]
            multiply = _multiply_pairs if is_wide else k.target.multiply

            def word(number: int) -> list[Val]:
                return [k.load(k.vi, here, (panels * number + p) * wide, align=wide) for p in range(panels)]

            totals = [[total.value for total in row] for row in sums]
            for row, values in zip(sums, multiply(k, word, count, rows, totals, largest), strict=True):
                for total, value in zip(row, values, strict=True):
                    total.set(value)
        for row, at in zip(sums, places, strict=True):
            for total, place in zip(row, at, strict=True):
                k.store(total.value, scratch, place)

    name = f"limit_{'pairs' if is_wide else 'dots'}_{largest}_{panels}x{tokens}"
    return Kernel(name, parse_fields("source:p rows:p blocks:i"), body, scratch=64 * panels * tokens)


def _multiply_pairs(k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int) -> Totals:
    """Return totals + products of pairs of 16 bits."""
    for number in range(count):
        weights = words(number)
        values = [k.broadcast(k.vi, row, 4 * number) for row in x]
        rows = zip(totals, values, strict=True)
        totals = k.pin(
            [[k.target.dot_pairs(k, *each, value) for each in zip(row, weights, strict=True)] for row, value in rows]
        )
    return totals


def fmas(target: Any) -> Kernel:
    """Compute f32 multiply-adds out of registers. An item is CHAINS of them, `lanes` each."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        a, b = k.load(k.vf, scratch), k.load(k.vf, scratch, 4 * k.lanes)
        sums = [k.var(k.load(k.vf, scratch, 4 * k.lanes * n)) for n in range(CHAINS)]
        with k.range(first, last):
            for total in sums:
                total.set(k.fma(a, b, total.value))
        for n, total in enumerate(sums):
            k.store(total.value, scratch, 4 * k.lanes * n)

    return Kernel("limit_fmas", parse_fields("unused:i"), body, scratch=64 * (CHAINS + 2))
