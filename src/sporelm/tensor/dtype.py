"""Element types: what one stored element is, in bytes.

A number format of `sporelm.quant` is an element type too: `values` numbers stored together in `nbytes` bytes.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

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


F32 = DType("f32", 4, np.dtype(np.float32))
F16 = DType("f16", 2, np.dtype(np.float16))
I32 = DType("i32", 4, np.dtype(np.int32))
I64 = DType("i64", 8, np.dtype(np.int64))
U8 = DType("u8", 1, np.dtype(np.uint8))

DTYPES = {dtype.name: dtype for dtype in (F32, F16, I32, I64, U8)}


def dtype_of(array: np.ndarray) -> DType:
    """The element type of a numpy array. Raises OpError for one we do not compute with."""
    for dtype in DTYPES.values():
        if dtype.numpy == array.dtype:
            return dtype
    raise OpError(f"{array.dtype} arrays are not computed with; convert to one of {', '.join(DTYPES)}")
