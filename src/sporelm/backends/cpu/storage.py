"""How values and tensors lie in CPU memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.backends.cpu.formats import Panels
from sporelm.backends.cpu.formats.panels import RECORD
from sporelm.errors import BackendError
from sporelm.ops.linear import INT8_32
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, DType

ROW_VALUES = 64  # rows of f32 begin at multiples of this, so that kernels store whole vectors and whole blocks


@dataclass(frozen=True)
class Stored:
    """A tensor's bytes: `array` keeps them alive, `address` is where they begin."""

    array: np.ndarray

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)


@dataclass(frozen=True)
class Packed(Stored):
    """A weight matrix in panels."""

    kind: Panels
    rows: int
    width: int

    @property
    def panels(self) -> int:
        return self.kind.panels(self.rows)

    @property
    def panel_bytes(self) -> int:
        return self.kind.panel_bytes(self.width)


@dataclass(frozen=True)
class PageStore(Stored):
    """A layer's part of a page pool: page p begins `stride` * p bytes past the address."""

    stride: int


def row_bytes(width: int, dtype: Any) -> int:
    """Bytes from one row of a value to the next."""
    if dtype is INT8_32:
        blocks = -(-width // 32)
        return (blocks + blocks % 2) * RECORD
    if dtype is F32:
        return -(-width // ROW_VALUES) * ROW_VALUES * 4
    return width * int(dtype.nbytes)


def value_bytes(spec: Spec) -> int:
    """Bytes of a value, symbols at their highest."""
    shape = spec.bound
    if len(shape) == 1:
        return -(-shape[0] * spec.dtype.nbytes // 256) * 256
    if len(shape) == 2:
        return shape[0] * row_bytes(shape[1], spec.dtype)
    raise BackendError(f"values have one or two dimensions on the CPU, not {spec}")


def as_array(memory: np.ndarray, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """A numpy view of a value that begins at the start of `memory`."""
    if len(shape) == 1:
        return memory[: shape[0] * dtype.nbytes].view(dtype.numpy)
    stride = row_bytes(shape[1], dtype)
    rows = memory[: shape[0] * stride].reshape(shape[0], stride)
    return rows.view(dtype.numpy)[:, : shape[1]]
