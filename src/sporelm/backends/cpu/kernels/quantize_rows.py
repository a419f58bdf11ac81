"""Kernels that round rows to int8 for integer dot products: records of 32 or 256 values
(formats/activation_records.py), in order of k.

A format that groups two records of 32 may read one record beyond the width, which is zero.
"""

from typing import Any

from sporelm.backends.cpu.formats.activation_records import (
    RECORDS,
    SUPER_SCALE,
    SUPER_SUMS_16,
    SUPER_SUMS_32,
    X_BIAS,
    X_BIAS_FIRST,
    X_SCALE,
    X_SCALED_SUM,
)
from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i8, i16, vec
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.ops.quantize_rows import INT8_32, ROW_FORMATS


def quantize_rows(target: Any, activation: str) -> Kernel:
    """Round the rows. An item is one token. `blocks` records are written per row, then zeros up to `padded`."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            _write_row(k, f, activation, k.at(f.x, token * f.x_stride), k.at(f.out, token * f.out_stride))

    text = "x:p x_stride:i out:p out_stride:i blocks:i padded:i"
    return Kernel(f"quantize_rows_{ROW_FORMATS[activation].values}", parse_fields(text), body)


def quantize_heads(target: Any, activation: str) -> Kernel:
    """Round the heads. An item is one head of a token, whose columns begin `head_stride` bytes after those of the
    previous head."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            row = k.at(f.x, item // f.heads * f.x_stride + item % f.heads * f.head_stride)
            _write_row(k, f, activation, row, k.at(f.out, item * f.out_stride))

    text = "x:p x_stride:i head_stride:i heads:i out:p out_stride:i blocks:i padded:i"
    return Kernel(f"quantize_heads_{ROW_FORMATS[activation].values}", parse_fields(text), body)


def _write_row(k: Builder, f: Any, activation: str, row: Val, out: Val) -> None:
    """Write the records of one row."""
    record, values = RECORDS[activation], ROW_FORMATS[activation].values
    write = write_record if activation == INT8_32.name else write_super_record
    with k.range(f.blocks) as block:
        parts = [k.load(k.vf, row, block * (4 * values) + 4 * at) for at in range(0, values, k.lanes)]
        write(k, parts, k.at(out, block * record))
    with k.range(f.blocks, f.padded) as block:
        for at in range(0, record, 16):
            k.store(k.const(vec(i8, 16), 0), out, block * record + at)


def write_record(k: Builder, parts: list[Val], out: Val) -> None:
    """Write one block of 32, given as f32 vectors, as a record at `out`."""
    scale, inverse = _block_scale(k, parts)
    middle = len(parts) // 2
    sums = [_write_bytes(k, parts[:middle], inverse, out), _write_bytes(k, parts[middle:], inverse, k.at(out, 16))]
    first, second = (k.fold(each, lambda a, b: a + b) for each in sums)
    whole = first + second
    k.store(scale, out, X_SCALE)
    k.store(whole.to_float() * scale, out, X_SCALED_SUM)
    k.store(first * -8, out, X_BIAS_FIRST)
    k.store(whole * -8, out, X_BIAS)


def write_super_record(k: Builder, parts: list[Val], out: Val) -> None:
    """Write one block of 256 as a record at `out`."""
    scale, inverse = _block_scale(k, parts)
    k.store(scale, out, SUPER_SCALE)
    each = max(1, 16 // k.lanes)
    sums = []
    for run in range(16):
        here = parts[run * each : (run + 1) * each]
        sums.append(k.fold(_write_bytes(k, here, inverse, k.at(out, 16 * run)), lambda a, b: a + b))
        k.store(sums[run].trunc(i16), out, SUPER_SUMS_16 + 2 * run)
    for run in range(8):
        k.store((sums[2 * run] + sums[2 * run + 1]).trunc(i16), out, SUPER_SUMS_32 + 2 * run)


def _block_scale(k: Builder, parts: list[Val]) -> tuple[Val, Val]:
    """Return the scale of a block and the factor of its values."""
    # magnitudes compare like integers, with NaN as the greatest, so that NaN is kept
    magnitudes = [part.bits(k.vi) & 0x7FFFFFFF for part in parts]
    while len(magnitudes) > 1:
        magnitudes = [k.max(a, b) for a, b in zip(magnitudes[::2], magnitudes[1::2], strict=True)]
    peak = k.fold(magnitudes[0], k.max).bits(f32)
    quotient = k.const(f32, 127.0) / peak  # infinite for 0 and for values near 0: such a block becomes zeros
    return peak / 127.0, k.select(quotient < float("inf"), quotient, k.const(f32, 0.0))


def _write_bytes(k: Builder, parts: list[Val], inverse: Val, out: Val) -> Val:
    """Write values as int8 at `out`, and return the vector of their sums."""
    total = k.const(k.vi, 0)
    for number, part in enumerate(parts):
        _, q = k.round_to_int(part * k.splat(inverse))
        total = total + q
        k.store(q.trunc(vec(i8, k.lanes)), out, number * k.lanes)
    return total
