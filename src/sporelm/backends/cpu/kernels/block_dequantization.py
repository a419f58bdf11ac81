"""Conversion of blocks of a number format to rows of numbers, as the formats' `dequantize` defines it. An item is
one row."""

from collections.abc import Callable, Iterator
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i8, i16, i32, vec
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.narrow_floats import from_bf16
from sporelm.backends.cpu.kernels.super_block_dequantization import (
    SUPER_BLOCK_READERS,
    load_bytes,
    load_half,
    lookup_levels,
)
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED, IQ4_LEVELS

Values = Iterator[Val]  # f32 vectors, in order


def dequantize_blocks(target: Any, name: str) -> Kernel:
    """Dequantize `blocks` blocks per row; rows of numbers begin `stride` bytes apart."""
    if name in WIDEN_FLOATS:
        return _dequantize_numbers(name)
    values, nbytes, read = BLOCK_READERS[name]

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row:
            source, out = k.at(f.source, row * f.blocks * nbytes), k.at(f.out, row * f.stride)
            with k.range(f.blocks) as block:
                for place, part in enumerate(read(k, k.at(source, block * nbytes))):
                    k.store(part, out, block * (4 * values) + 4 * k.lanes * place)

    return Kernel(f"dequantize_blocks_{name.lower()}", parse_fields("source:p blocks:i out:p stride:i"), body)


def _dequantize_numbers(name: str) -> Kernel:
    """Dequantize formats of single two-byte numbers."""
    widen = WIDEN_FLOATS[name]

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row:
            source, out = k.at(f.source, row * f.blocks * 2), k.at(f.out, row * f.stride)
            whole = f.blocks // k.lanes * k.lanes
            with k.range(0, whole, k.lanes) as at:
                k.store(widen(k, k.load(vec(i16, k.lanes), source, at * 2)), out, at * 4)
            with k.range(whole, f.blocks) as at:
                k.store(widen(k, k.load(i16, source, at * 2)), out, at * 4)

    return Kernel(f"dequantize_blocks_{name.lower()}", parse_fields("source:p blocks:i out:p stride:i"), body)


WIDEN_FLOATS: dict[str, Callable[[Builder, Val], Val]] = {
    "F16": lambda k, bits: k.target.from_half(k, bits),
    "BF16": from_bf16,
}


def _nibbles(k: Builder, block: Val, offset: int) -> Iterator[tuple[int, Val]]:
    """Yield 32 numbers of four bits from 16 bytes, low nibbles first: (place, i32 vector)."""
    for place in range(0, 32, k.lanes):
        yield place, load_bytes(k, block, offset + place % 16) >> (4 * (place // 16)) & 15


def _fifth_bits(k: Builder, block: Val, offset: int, place: int) -> Val:
    """Return bits of a 32-bit word from `place` on, as bit 4 of i32 lanes."""
    word = k.splat(k.load(i32, block, offset, 1))
    return (word >> (k.iota(k.vi) + place) & 1) << 4


def _q4_0(k: Builder, block: Val) -> Values:
    scale = load_half(k, block, 0)
    for _, number in _nibbles(k, block, 2):
        yield (number - 8).to_float() * scale


def _q4_1(k: Builder, block: Val) -> Values:
    scale, minimum = load_half(k, block, 0), load_half(k, block, 2)
    for _, number in _nibbles(k, block, 4):
        yield number.to_float() * scale + minimum


def _q5_0(k: Builder, block: Val) -> Values:
    scale = load_half(k, block, 0)
    for place, number in _nibbles(k, block, 6):
        yield ((number | _fifth_bits(k, block, 2, place)) - 16).to_float() * scale


def _q5_1(k: Builder, block: Val) -> Values:
    scale, minimum = load_half(k, block, 0), load_half(k, block, 2)
    for place, number in _nibbles(k, block, 8):
        yield (number | _fifth_bits(k, block, 4, place)).to_float() * scale + minimum


def _q8_0(k: Builder, block: Val) -> Values:
    scale = load_half(k, block, 0)
    for place in range(0, 32, k.lanes):
        yield k.load(vec(i8, k.lanes), block, 2 + place).sext(k.vi).to_float() * scale


def _iq4_nl(k: Builder, block: Val) -> Values:
    scale = load_half(k, block, 0)
    for _, code in _nibbles(k, block, 2):
        yield lookup_levels(k, code, IQ4_LEVELS.tolist()) * scale


def _iq4_xs(k: Builder, block: Val) -> Values:
    scale, upper = load_half(k, block, 0), k.load(i16, block, 2, 1).zext(i32)
    for group in range(8):
        low = k.load(i8, block, 4 + group // 2).zext(i32) >> (4 * (group % 2)) & 15
        multiple = (low | (upper >> (2 * group) & 3) << 4) - 32
        step = scale * k.splat(multiple.to_float())
        for _, code in _nibbles(k, block, 8 + 16 * group):
            yield lookup_levels(k, code, IQ4_LEVELS.tolist()) * step


def _mxfp4(k: Builder, block: Val) -> Values:
    exponent = k.load(i8, block).zext(i32)
    tiny = k.select(exponent.equals(0), k.const(i32, 1 << 21), k.const(i32, 1 << 22))
    half_step = k.splat(k.select(exponent < 2, tiny, (exponent - 1) << 23).bits(f32))  # 2^(exponent - 128)
    for _, code in _nibbles(k, block, 1):
        yield lookup_levels(k, code, E2M1_DOUBLED.tolist()) * half_step


# Values and bytes of a block, and the function that reads one.
BLOCK_READERS: dict[str, tuple[int, int, Callable[[Builder, Val], Values]]] = SUPER_BLOCK_READERS | {
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "Q8_0": (32, 34, _q8_0),
    "IQ4_NL": (32, 18, _iq4_nl),
    "IQ4_XS": (256, 136, _iq4_xs),
    "MXFP4": (32, 17, _mxfp4),
}
