"""The storage of values and tensors in buffers of an OpenCL device."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from sporelm.backends.context import Context, Resource
from sporelm.backends.opencl.weight_formats import OVERREAD_BYTES, RUN, WeightFormat
from sporelm.tensor.dtype import F32, DType


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """Numbers in row-major order in a buffer, or in a part of one.

    buffer   a buffer of pyopencl of its own, or a sub-buffer
    dtype    the type of the numbers: F32 of a graph is kept as F16 where activations are narrow
    """

    buffer: Any
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class RoundedRows(DeviceArray):
    """Rows rounded to int8 per group, as the numbers that they stand for, and as integers (`kernels/rounding.h`)."""

    @staticmethod
    def nbytes(numbers: int) -> int:
        """Return the bytes of rows with this many numbers: floats, integers, and two floats for each run of 32."""
        return numbers * (F32.nbytes + 1) + numbers // RUN * 2 * F32.nbytes + OVERREAD_BYTES


@dataclass(frozen=True, eq=False)
class PlaneWeight:
    """A weight matrix [out, in], or experts' matrices [experts, out, in], as planes: see `weight_formats`."""

    buffer: Any
    shape: tuple[int, ...]
    format: WeightFormat

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the byte offsets of the planes after the first."""
        return self.format.plane_offsets(self.shape)


class PoolBuffers(Resource):
    """The buffers of a pool of pages or states, freed together: one for each layer's array.

    finish   waits until no launch uses them
    """

    def __init__(self, context: Context, buffers: Sequence[Any], label: str, finish: Callable[[], None]) -> None:
        super().__init__(context, label)
        self.buffers = list(buffers)
        self._finish = finish

    def release(self) -> None:
        self._finish()
        for buffer in self.buffers:
            with suppress(cl.Error):  # of a lost device: what it has is gone, and the others are freed
                buffer.release()
            buffer.count_freed()
        self.buffers = []


@dataclass(frozen=True, eq=False)
class PooledArray:
    """One layer's pages or states. `shape` is the logical one; it is exported row-major as
    `export_shape` elements of `export_dtype`."""

    pool: PoolBuffers
    index: int
    shape: tuple[int, ...]
    export_dtype: DType
    export_shape: tuple[int, ...]

    @property
    def buffer(self) -> Any:
        """Return its buffer. Raise ContextError once the pool is freed."""
        self.pool.check()
        return self.pool.buffers[self.index]


@dataclass(frozen=True, eq=False)
class OutputHandle:
    """An output of a program: valid until the program runs again."""

    array: DeviceArray
    shape: tuple[int, ...]
    dtype: Any  # numpy's, of what is fetched

    def __getitem__(self, rows: slice) -> "OutputHandle":
        """Return the first rows."""
        stop = min(self.shape[0], rows.stop if rows.stop is not None else self.shape[0])
        assert (rows.start or 0, rows.step or 1) == (0, 1)
        return OutputHandle(self.array, (stop, *self.shape[1:]), self.dtype)
