"""Element types: the size and the numpy type of a stored element.

A number format of `sporelm.quant` is an element type too: `values` numbers stored together in `nbytes` bytes.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError


@runtime_checkable
class ElementType(Protocol):
    """`values` numbers that are stored in `nbytes` bytes."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class DType:
    """A plain element: one value of `nbytes` bytes with an equivalent numpy type."""

    name: str
    nbytes: int
    numpy: np.dtype
    values: int = 1

    def __repr__(self) -> str:
        return self.name

    def to_f32(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """Return the values of stored elements as float32."""
        return array.astype(np.float32)

    def from_f32(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return float32 values as stored elements: to nearest, ties to even, where the element is a float."""
        with np.errstate(over="ignore"):  # beyond the greatest number is infinity
            return values.astype(self.numpy)


class BFloat16(DType):
    """The upper half of a float32. numpy lacks the type: arrays hold its bits as uint16."""

    def to_f32(self, array: NDArray[Any]) -> NDArray[np.float32]:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def from_f32(self, values: NDArray[np.float32]) -> NDArray[np.uint16]:
        """Round to nearest, ties to even. Beyond the greatest number is infinity; a NaN becomes quiet."""
        bits = np.asarray(values, np.float32).view(np.uint32)
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        is_nan = (bits & np.uint32(0x7FFF_FFFF)) > np.uint32(0x7F80_0000)
        return (np.where(is_nan, bits | np.uint32(0x0040_0000), rounded) >> np.uint32(16)).astype(np.uint16)


class Float8(DType):
    """E4M3FN (Micikevicius et al. 2022, "FP8 formats for deep learning"): sign, four bits of exponent, three of
    fraction. It has no infinity; all bits but the sign set mean NaN. Arrays hold its bits as uint8."""

    def to_f32(self, array: NDArray[Any]) -> NDArray[np.float32]:
        return _FLOAT8_VALUES[array]

    def from_f32(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Round to nearest, ties to even. Values beyond +-448, infinities too, become +-448; a NaN stays NaN.

        A conversion to `torch.float8_e4m3fn` gives NaN from 464 on. With that, one large key would spoil a page.
        """
        values = np.asarray(values, np.float32)
        sign, is_nan = (values.view(np.uint32) >> np.uint32(24)) & np.uint32(0x80), np.isnan(values)
        clamped = np.minimum(np.abs(np.where(is_nan, np.float32(0), values)), np.float32(FLOAT8_MAX))
        magnitude = clamped.view(np.uint32)
        # Below 2**-6 the float addition rounds to a multiple of 2**-9, the step of subnormal numbers.
        tiny = (clamped + np.float32(2**14)).view(np.uint32) - np.float32(2**14).view(np.uint32)
        normal = (magnitude + (np.uint32(0x7_FFFF) + ((magnitude >> np.uint32(20)) & np.uint32(1)))) >> np.uint32(20)
        code = np.where(clamped < np.float32(2**-6), tiny, normal - np.uint32(120 << 3))
        return (sign | np.where(is_nan, np.uint32(0x7F), code)).astype(np.uint8)


def _decode_float8() -> NDArray[np.float32]:
    """Return the values of the 256 codes."""
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent > 0, np.ldexp(1 + fraction / 8, exponent - 7), np.ldexp(fraction / 8, -6))
    return np.where(codes & 127 == 127, np.nan, np.where(codes > 127, -magnitude, magnitude)).astype(np.float32)


FLOAT8_MAX = 448.0
_FLOAT8_VALUES = _decode_float8()

F32 = DType("f32", 4, np.dtype(np.float32))
F16 = DType("f16", 2, np.dtype(np.float16))
I32 = DType("i32", 4, np.dtype(np.int32))
I64 = DType("i64", 8, np.dtype(np.int64))
U8 = DType("u8", 1, np.dtype(np.uint8))

BF16 = BFloat16("bf16", 2, np.dtype(np.uint16))
FP8 = Float8("fp8", 1, np.dtype(np.uint8))

# The types that a numpy array has by itself. BF16 and FP8 are reached only by name.
DTYPES = {dtype.name: dtype for dtype in (F32, F16, I32, I64, U8)}


def dtype_of(array: np.ndarray) -> DType:
    """Return the element type of a numpy array. Raises OpError for an unsupported one."""
    for dtype in DTYPES.values():
        if dtype.numpy == array.dtype:
            return dtype
    raise OpError(f"{array.dtype} arrays are not computed with; convert to one of {', '.join(DTYPES)}")
