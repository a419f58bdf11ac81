"""Asynchronous copies from a torch device to the host."""

import numpy as np
import torch
from torch import Tensor

from sporelm.backends.device_context import DeviceResource
from sporelm.backends.torch.torch_resources import HostBuffer, TorchResources


class TorchFetch(DeviceResource):
    """A copy of a tensor to the host, through a pinned buffer. It is freed by `result`; the array stays.

    An exact copy: bfloat16 and FP8 are given as their bits. What is launched later does not change it, except to the
    tensor itself, which must be a result that no other launch writes.
    """

    def __init__(self, resources: TorchResources, stored: Tensor) -> None:
        shape = "x".join(map(str, stored.shape))
        self._resources = resources
        self._buffer: HostBuffer | None = None
        self._array: np.ndarray | None = None
        super().__init__(resources.context, f"copy of {str(stored.dtype).removeprefix('torch.')}[{shape}] to the host")
        self._shape, self._dtype = tuple(stored.shape), stored.dtype
        self._buffer = resources.start_copy(stored)

    @property
    def parts(self) -> tuple[DeviceResource, ...]:
        return () if self._buffer is None else (self._buffer,)

    def result(self) -> np.ndarray:
        """See `Fetch.result`. Later calls return the same array, in any thread."""
        if self._array is None:
            self.check()
            buffer = self._buffer
            assert buffer is not None
            buffer.event.synchronize()
            buffer.source = None
            self._array = as_array(buffer.view(self._shape, self._dtype).clone())
            self.end()
        return self._array

    def release(self) -> None:
        if self._buffer is not None and not self._buffer.freed:
            self._resources.buffers.put_back(self._buffer)
        self._buffer = None

    def __del__(self) -> None:
        """Return the buffer of a copy that was never asked for."""
        self.release()


def as_array(stored: Tensor) -> np.ndarray:
    """Return a tensor on the host as an array: float16 and float32 as they are, bfloat16 and FP8 as their bits."""
    if stored.dtype is torch.bfloat16:
        return stored.view(torch.int16).numpy().view(np.uint16)
    return (stored.view(torch.uint8) if stored.dtype is torch.float8_e4m3fn else stored).numpy()
