"""Kernels that measure the machine's peak rates: reading memory, and arithmetic in one register tile."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields

BLOCK = 4096  # bytes an item of `stream`
CHAINS = 10  # independent accumulators, more than the latency of a product needs
WORDS = 8  # vectors of weights in a block of 32 columns


def stream(target: Any) -> Kernel:
    """Read memory once. An item is one block of 4 KB."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        sums = [k.zero(k.vi) for _ in range(4)]
        with k.range(first * BLOCK, last * BLOCK, 16 * wide) as at:
            for line in range(16):
                k.prefetch(f.source, at + (2048 + wide * line))
                total = sums[line % 4]
                total.set(total.value + k.load(k.vi, f.source, at + wide * line))
        k.store(sums[0].value + sums[1].value + sums[2].value + sums[3].value, scratch)

    return Kernel("limit_stream", parse_fields("source:p"), body, scratch=64)


def dots(target: Any) -> Kernel:
    """Compute integer dot products of four-bit weights in registers, activations next to them. An item is WORDS *
    CHAINS."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        weights = k.load(k.vi, scratch)
        sums = [k.var(k.load(k.vi, scratch, wide * n)) for n in range(CHAINS)]
        with k.range(first, last):
            here = k.opaque(weights)  # or LLVM would multiply once, before the loop
            totals = [[total.value] for total in sums]
            rows = [k.at(scratch, wide * n) for n in range(CHAINS)]
            found = k.target.multiply(k, lambda number: [here], WORDS, rows, totals, 15)
            for total, (value,) in zip(sums, found, strict=True):
                total.set(value)
        for n, total in enumerate(sums):
            k.store(total.value, scratch, wide * n)

    return Kernel("limit_dots", parse_fields("unused:i"), body, scratch=64 * CHAINS)


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
