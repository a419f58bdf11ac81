"""MXFP4: four-bit floats and a power of two."""

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, store_nibbles
from sporelm.backends.cpu.quantizers.uneven_levels import code_e2m1

# float32 rounds the logarithm of a number to n if the number is at most that many steps below 2^n, for n of this size
# and more.
ROUNDED_UP = ((2, 1), (4, 2), (8, 5), (16, 11), (32, 22), (64, 44), (128, 88))


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k = work.k
    found = k.zero(k.vf)
    with k.range(32) as at:
        found.set(k.fmax(k.fabs(x[at]), found.value))
    largest = found.value
    exponent = (floor_of_log2(k, largest) + 125) & 0xFF  # below 2^-125 it wraps around, and all numbers become 0
    exponent = k.select(largest > 0.0, exponent, k.const(k.vi, 0))
    subnormal = k.select(exponent.equals(0), k.const(k.vi, 1 << 21), k.const(k.vi, 1 << 22))
    half_step = k.select(exponent < 2, subnormal, exponent - 1 << 23).bits(k.vf)  # 2^(exponent - 128)
    codes = work.integers(32)
    with k.range(32) as at:
        codes[at] = code_e2m1(k, x[at], half_step)
    work.bytes(0)[0] = exponent
    store_nibbles(work.words(1, 4), codes)


def floor_of_log2(k: Builder, x: Val) -> Val:
    """Return floor(log2(x)) with the logarithm rounded to f32 first, as in C: i32; any number for 0."""
    tiny = x < 2.0**-126
    bits = k.select(tiny, x * 2.0**24, x).bits(k.vi)
    above = (bits >> 23) - k.select(tiny, k.const(k.vi, 150), k.const(k.vi, 126))  # x is below 2^above
    missing = k.const(k.vi, 1 << 23) - (bits & 0x7FFFFF)
    size = k.select(above > 0, above - 1, k.const(k.vi, 0) - above)
    allowed = k.const(k.vi, 0)
    for least, steps in ROUNDED_UP:
        allowed = k.select(size >= least, k.const(k.vi, steps), allowed)
    return k.select(missing > allowed, above - 1, above)
