"""Loads, stores and tile products of values of any float type, for kernels.

Kernels compute in float32, read narrow values (16 bits) through `load_wide` and round results with `narrow`. Products
of tiles go through `dot`. Triton's interpreter truncates where it should round to bfloat16, and multiplies bfloat16
wrongly: these functions work around both.
"""

import triton
import triton.language as tl

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)  # by the variable TRITON_INTERPRET
_INTERPRETED: tl.constexpr = tl.constexpr(IS_INTERPRETED)


@triton.jit
def load_wide(pointers, mask):
    """Return numbers as float32, and 0 where the mask is false."""
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def narrow(values, DTYPE: tl.constexpr):
    """Round float32 numbers to a type, to nearest."""
    if _INTERPRETED and DTYPE.is_bf16():
        bits = values.to(tl.uint32, bitcast=True)
        rounded = tl.where(values == values, bits + (0x7FFF + ((bits >> 16) & 1)), bits)
        return (rounded >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return values.to(DTYPE)


@triton.jit
def store_narrow(pointers, values, mask):
    """Round float32 numbers to the type of their place, and write them where the mask is true."""
    tl.store(pointers, narrow(values.to(tl.float32), pointers.dtype.element_ty), mask=mask)


@triton.jit
def dot(left, right, total):
    """Return total + left @ right, added up in float32: tiles [m, k] and [k, n] of one float type."""
    if _INTERPRETED:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
    else:
        return tl.dot(left, right, total, input_precision="ieee")
