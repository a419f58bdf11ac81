"""Rounds rows to int8 for integer dot products.

32 values become one record of 48 bytes: 32 int8 q, f32 scale, f32 scale * sum(q) (for formats with an offset), i32
-128 * sum(q) (for weights stored as value + 128), 4 bytes unused. The records of a row stand in order of k; a format
that groups two blocks may read one more than the width has, which is zero.
"""

from typing import Any

from sporelm.backends.cpu.formats.panels import RECORD, X_BIAS, X_SCALE, X_SCALED_SUM
from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i8, vec
from sporelm.backends.cpu.jit.kernel import fields


def quantize_rows(target: Any) -> Kernel:
    """An item is one token. `blocks` records are written a row, and zeros up to `padded`."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            row, out = k.at(f.x, token * f.x_stride), k.at(f.out, token * f.out_stride)
            with k.range(f.blocks) as block:
                write_record(
                    k,
                    [k.load(k.vf, row, block * 128 + 4 * at) for at in range(0, 32, k.lanes)],
                    k.at(out, block * RECORD),
                )
            with k.range(f.blocks, f.padded) as block:
                for at in range(0, RECORD, 16):
                    k.store(k.const(vec(i8, 16), 0), out, block * RECORD + at)

    return Kernel("quantize_rows", fields("x:p x_stride:i out:p out_stride:i blocks:i padded:i"), body)


def write_record(k: Builder, parts: list[Val], out: Val) -> None:
    """One block, given as f32 vectors, to its record at `out`."""
    # magnitudes compare like integers, and NaN as the greatest, so that it is not lost
    magnitudes = [part.bits(k.vi) & 0x7FFFFFFF for part in parts]
    while len(magnitudes) > 1:
        magnitudes = [k.max(a, b) for a, b in zip(magnitudes[::2], magnitudes[1::2], strict=True)]
    peak = k.fold(magnitudes[0], k.max).bits(f32)
    scale = peak / 127.0
    quotient = k.const(f32, 127.0) / peak  # infinite for 0 and for what is nearly 0: such a block is zeros
    inverse = k.select(quotient < float("inf"), quotient, k.const(f32, 0.0))
    total = k.const(k.vi, 0)
    for number, part in enumerate(parts):
        _, q = k.round_to_int(part * k.splat(inverse))
        total = total + q
        k.store(q.trunc(vec(i8, k.lanes)), out, number * k.lanes)
    whole = k.fold(total, lambda a, b: a + b)
    k.store(scale, out, X_SCALE)
    k.store(whole.to_float() * scale, out, X_SCALED_SUM)
    k.store(whole * -128, out, X_BIAS)
