"""The storage of values and tensors in CPU memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from sporelm.backends.context import Context, Resource
from sporelm.backends.cpu.formats import Panels
from sporelm.backends.cpu.formats.activation_records import records_bytes
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.errors import BackendError
from sporelm.ops.quantize_rows import RowFormat
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, DType
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

ROW_VALUES = 64  # rows of f32 begin at multiples of this, so that kernels can store whole vectors and blocks


@dataclass(frozen=True)
class TensorStorage:
    """A tensor's bytes: `array` keeps them alive, `address` is their start, `shape` is the stored shape.

    Views of the tensor share it; their layouts count elements of `shape` in row-major order, without row padding.
    """

    array: np.ndarray
    shape: tuple[int, ...]

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)


@dataclass(frozen=True)
class PackedMatrix(TensorStorage):
    """A weight matrix in panels."""

    kind: Panels

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        return self.shape[1]

    @property
    def panels(self) -> int:
        return self.kind.panels(self.rows)

    @property
    def panel_bytes(self) -> int:
        return self.kind.panel_bytes(self.width)


@dataclass(frozen=True)
class PackedExperts(PackedMatrix):
    """Matrices of experts, [experts, out, in], each in its own panels, one after the other."""

    @property
    def rows(self) -> int:
        return self.shape[1]

    @property
    def width(self) -> int:
        return self.shape[2]

    @property
    def expert_bytes(self) -> int:
        return self.panels * self.panel_bytes


class PoolMemory(Resource):
    """The memory of a page pool, all layers together; it returns to the system when the last array on it is gone."""

    def __init__(self, context: Context, nbytes: int, label: str) -> None:
        super().__init__(context, label)
        self.array = Region(nbytes, huge=True).array

    def release(self) -> None:
        self.array = np.zeros(0, np.uint8)


@dataclass(frozen=True)
class PageStore(TensorStorage):
    """A layer's part of a pool of pages or states: number p begins `stride` * p bytes past the address."""

    stride: int
    memory: PoolMemory


def page_store(cache: Tensor) -> PageStore:
    """Return the storage of a cache's pages. Raise BackendError for another tensor or a view, ContextError after it was
    freed."""
    store = cache.storage
    if not isinstance(store, PageStore) or cache.layout != Layout.contiguous(store.shape):
        raise BackendError(
            f"{cache}: not a whole cache. Pass what allocate_pages() or allocate_states() returned, not a view of it."
        )
    store.memory.check()
    return store


def copy_slots(store: PageStore, copies: Sequence[tuple[int, int]]) -> None:
    """Copy pages or states (source, target) of all layers of a pool, one after the other. Changes the pool."""
    whole = store.memory.array.reshape(-1, store.stride)
    for source, target in copies:
        whole[target] = whole[source]


def is_view(tensor: Tensor) -> bool:
    """Return whether a tensor's layout differs from the first rows of its storage."""
    stored: tuple[int, ...] = tensor.storage.shape
    first = tensor.shape[1:] == stored[1:] and tensor.shape[:1] <= stored[:1]
    return not first or tensor.layout != Layout.contiguous(tensor.shape)


def row_bytes(width: int, dtype: Any) -> int:
    """Return the bytes from one row of a value to the next."""
    if isinstance(dtype, RowFormat):
        return records_bytes(width, dtype)
    if dtype is F32:
        return -(-width // ROW_VALUES) * ROW_VALUES * 4
    return width * int(dtype.nbytes)


def value_bytes(spec: Spec) -> int:
    """Return the bytes of a value, with symbols at their maximum."""
    shape = spec.bound
    if len(shape) == 1:
        return -(-shape[0] * spec.dtype.nbytes // 256) * 256
    if len(shape) in (2, 3):
        return prod(shape[:-1]) * row_bytes(shape[-1], spec.dtype)
    raise BackendError(f"values have one to three dimensions on the CPU, not {spec}")


def view_array(memory: np.ndarray, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return a numpy view of a value of one to three dimensions that begins at the start of `memory`."""
    if len(shape) == 1:
        return memory[: shape[0] * dtype.nbytes].view(dtype.numpy)
    *outer, width = shape
    stride = row_bytes(width, dtype)
    rows = memory[: prod(outer) * stride].reshape(*outer, stride)
    return rows.view(dtype.numpy)[..., :width]
