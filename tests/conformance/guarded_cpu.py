"""A CPU back-end whose values stand between canaries and begin as NaN.

A kernel that writes too much, or reads memory that was never written, is found.
"""

from typing import Any

import numpy as np

from sporelm.backends.cpu import CpuBackend
from sporelm.backends.cpu.runtime.tensor_storage import TensorStorage, is_view, value_bytes
from sporelm.ops import Op, Spec
from sporelm.tensor.dtype import F32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

FENCE = 1024  # bytes of canary on each side: wider than a row tile of any kernel is likely to miss by
CANARY = 0xA5
POISON = np.float32("nan")


class GuardedHeap:
    """Zeroed, 64-byte aligned arrays, each between two fences of canaries."""

    def __init__(self) -> None:
        self.fences: list[np.ndarray] = []

    def take(self, nbytes: int) -> np.ndarray:
        whole = np.full(nbytes + 2 * FENCE + 64, CANARY, np.uint8)
        start = FENCE + -(whole.ctypes.data + FENCE) % 64
        self.fences += [whole[:start], whole[start + nbytes :]]
        found = whole[start : start + nbytes]
        found[:] = 0
        return found

    def check(self) -> None:
        """Raise AssertionError if any fence was written to; forget them all."""
        fences, self.fences = self.fences, []
        broken = sum(int((fence != CANARY).any()) for fence in fences)
        assert not broken, f"{broken} of {len(fences)} fences around values were written to"


class GuardedCpu(CpuBackend):
    """The CPU back-end over guarded memory; results begin as NaN, and so does the padding of arguments' rows."""

    def __init__(self, threads: int = 2, target: str | None = None) -> None:
        super().__init__(threads=threads, target=target)
        self.heap = GuardedHeap()
        self._heap: Any = self.heap

    def _fresh(self, spec: Spec) -> Tensor:
        memory = self.heap.take(value_bytes(spec))
        memory[:] = 0xFF  # NaN as f32, -1 as int
        return Tensor(spec.dtype, Layout.contiguous(spec.bound), TensorStorage(memory, spec.bound), self)

    def run(self, op: Op, args: Any, options: Any) -> Any:
        for arg in args:
            if (
                isinstance(arg, Tensor)
                and arg.dtype is F32
                and len(arg.shape) == 2
                and arg.shape[0]
                and not is_view(arg)
            ):
                self._poison_padding(arg)
        return super().run(op, args, options)

    def _poison_padding(self, tensor: Tensor) -> None:
        rows, width = tensor.shape
        tensor.storage.array.view(np.float32).reshape(rows, -1)[:, width:] = POISON
