"""Runs each op by its numpy reference. Slow, and the oracle for every other back-end."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sporelm.backends.function_backend import FunctionBackend
from sporelm.backends.protocol import Ready, WeightArray
from sporelm.ops import Op
from sporelm.ops.canonical_pages import CarrierPages
from sporelm.tensor.dtype import BF16, F32, FP8, DType, ElementType
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor


class ReferenceWeight:
    """A weight with its format, dequantized once."""

    def __init__(self, weight: WeightArray) -> None:
        self.format = weight.format
        self.array = weight.dequantize()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def dequantize(self) -> np.ndarray:
        return self.array

    def take(self, ids: np.ndarray) -> np.ndarray:
        return self.array[ids]


class ReferenceBackend(FunctionBackend):
    """Numpy references on numpy arrays. A tensor's storage is an array of its logical shape."""

    name = "reference"

    def __init__(self, threads: int | None = None) -> None:
        super().__init__()
        self.threads = 1

    def probe(self) -> Ready:
        return Ready({"numpy": np.__version__})

    def find_function(self, op: Op) -> Callable[..., Any]:
        return op.reference

    def copy_in(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def copy_out(self, stored: np.ndarray) -> np.ndarray:
        return stored

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        return np.zeros(shape, dtype.numpy)

    def allocate_cache(self, shape: tuple[int, ...], dtype: ElementType) -> Any:
        held = super().allocate_cache(shape, dtype)
        return CarrierPages(held, dtype) if isinstance(dtype, DType) and dtype in (BF16, FP8) else held

    def is_plain(self, tensor: Tensor) -> bool:
        return isinstance(tensor.storage, np.ndarray)

    def pack(self, weight: WeightArray) -> Tensor:
        stored = weight.dequantize() if len(weight.shape) == 1 else ReferenceWeight(weight)
        dtype = F32 if len(weight.shape) == 1 else weight.format
        return Tensor(dtype, Layout.contiguous(weight.shape), stored, self)

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * 4
