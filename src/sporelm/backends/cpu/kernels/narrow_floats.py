"""Narrow floats of KV pages, scalars or vectors, from and to f32. The results are those of `tensor/dtype.py`.

bfloat16 and FP8 are converted by bits: instructions for them differ between CPUs, also in their results.
"""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i16, i32, nbytes, vec
from sporelm.backends.cpu.targets.cpu_target import widen_type

FP8_UNIT = 256.0  # exponents of FP8 are 8 lower than those of f16, whose bits its bits become
MAX_FP8 = 0x43E0_0000  # the bits of 448
MIN_NORMAL_FP8 = 0x3C80_0000  # of 2**-6
FP8_STEP = 2.0**14  # an f32 there has the step of subnormal FP8, 2**-9
FP8_STEP_BITS = 0x4680_0000


def from_bf16(k: Builder, bits: Val) -> Val:
    """Convert the bits of bfloat16, i16, to f32."""
    return (bits.zext(widen_type(bits.type, i32)) << 16).bits(widen_type(bits.type, f32))


def to_bf16(k: Builder, numbers: Val) -> Val:
    """Convert f32 to the bits of bfloat16, i16: to nearest, ties to even; NaNs become quiet."""
    bits = numbers.bits(widen_type(numbers.type, i32))
    rounded = bits + ((bits >> 16 & 1) + 0x7FFF)
    return (k.select(numbers.is_nan(), bits | 0x00400000, rounded) >> 16).trunc(widen_type(numbers.type, i16))


def from_fp8(k: Builder, codes: Val) -> Val:
    """Convert FP8 (E4M3FN), i8, to f32."""
    halves = (codes.sext(widen_type(codes.type, i16)) << 7) & -0x4001  # clears the bit to which the sign was copied
    nan = ((halves & 0x3F80) + 0x80) & 0x4000  # only all ones carry into this bit, which makes them NaN of f16
    return k.target.from_half(k, halves | nan) * FP8_UNIT


def to_fp8(k: Builder, numbers: Val) -> Val:
    """Convert f32 to FP8, i8: to nearest, ties to even; beyond 448 to 448; NaN stays NaN."""
    wide = widen_type(numbers.type, i32)
    bits = numbers.bits(wide)
    magnitude = k.min(bits & 0x7FFFFFFF, MAX_FP8)
    tiny = (magnitude.bits(numbers.type) + FP8_STEP).bits(wide) - FP8_STEP_BITS
    normal = (magnitude + ((magnitude >> 20 & 1) + (0x7FFFF - (120 << 23)))) >> 20
    code = k.select(magnitude < MIN_NORMAL_FP8, tiny, normal)
    code = k.select(numbers.is_nan(), k.const(wide, 0x7F), code)
    return (code | (bits >> 24 & 0x80)).trunc(widen_type(numbers.type, i8))


# By the name of the element: its bits, and the conversions from and to f32.
NARROW_ELEMENTS: dict[str, tuple[Any, Callable[[Builder, Val], Val], Callable[[Builder, Val], Val]]] = {
    "f16": (i16, lambda k, bits: k.target.from_half(k, bits), lambda k, numbers: k.target.to_half(k, numbers)),
    "bf16": (i16, from_bf16, to_bf16),
    "fp8": (i8, from_fp8, to_fp8),
}


def element_bytes(element: str) -> int:
    """Return the bytes of an element: one of NARROW_ELEMENTS, or f32."""
    return nbytes(NARROW_ELEMENTS[element][0]) if element in NARROW_ELEMENTS else 4


def load_element(k: Builder, element: str, lanes: int, base: Val, offset: int | Val = 0) -> Val:
    """Load `lanes` elements as f32: a vector, or a scalar for 1."""
    kind, widen = (f32, None) if element == "f32" else NARROW_ELEMENTS[element][:2]
    found = k.load(vec(kind, lanes) if lanes > 1 else kind, base, offset)
    return found if widen is None else widen(k, found)


def narrow_to_element(k: Builder, element: str, numbers: Val) -> Val:
    """Convert f32 to an element."""
    return numbers if element == "f32" else NARROW_ELEMENTS[element][2](k, numbers)
