"""Streams, events and pinned host memory of a torch device, as resources of the back-end's context (ADR 0048).

Uploads run on the device's own stream, in the order of the launches. Copies to the host run on a second stream, which
waits for what was launched before the copy only. Both pass through pinned buffers that are used again.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sporelm.backends.context import Resource
from sporelm.backends.device_context import DeviceContext, DeviceResource

MIN_BUFFER_BYTES = 1 << 12
MAX_UPLOAD_BYTES = 1 << 26  # larger arrays, such as weights, are uploaded without a buffer
MAX_IDLE_BYTES = 1 << 28  # of buffers that wait to be used again


class TorchDevice:
    """The functions of torch's module for a kind of device. Streams and events are that module's."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.module = device, torch.get_device_module(device)

    def enter(self) -> AbstractContextManager[Any]:
        """Make the device current in this thread: a new event belongs to the current device."""
        if self.device.index is None or not hasattr(self.module, "device"):
            return nullcontext()
        return self.module.device(self.device)

    def create_stream(self) -> Any:
        """Return a new stream."""
        return self.module.Stream()

    def create_event(self) -> Any:
        """Return a new event."""
        return self.module.Event()

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Launch on a stream instead of the device's own."""
        return self.module.stream(stream)

    def allocate_host(self, nbytes: int) -> Tensor:
        """Return pinned memory of the host, for copies by DMA: uint8 [nbytes]."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.device.type != "cpu")


class Event(DeviceResource):
    """A mark in the order of a stream's launches, which may be recorded many times."""

    def __init__(self, context: DeviceContext, device: TorchDevice) -> None:
        super().__init__(context, "event")
        self._event: Any = device.create_event()

    def record(self) -> None:
        """Mark what was launched on the current stream so far."""
        self.check()
        self._event.record()

    def is_complete(self) -> bool:
        """Return whether all is done that was launched before the mark."""
        self.check()
        return bool(self._event.query())

    def synchronize(self) -> None:
        """Wait until all is done that was launched before the mark."""
        self.check()
        self._event.synchronize()

    def release(self) -> None:
        self._event.synchronize()  # the device may still read or write the memory beside it
        self._event = None


class Stream(Resource):
    """A queue of launches beside the device's own."""

    def __init__(self, context: DeviceContext, device: TorchDevice, label: str) -> None:
        super().__init__(context, label)
        self._device, self._stream = device, device.create_stream()

    def wait(self, event: Event) -> None:
        """Begin what is launched from now on only after an event's mark."""
        self.check()
        event.check()
        self._stream.wait_event(event._event)

    @contextmanager
    def launches(self) -> Iterator[None]:
        """Launch on this stream."""
        self.check()
        with self._device.on_stream(self._stream):
            yield

    def release(self) -> None:
        self._stream = None


class HostBuffer(DeviceResource):
    """Pinned memory, and the event after which the device neither reads nor writes it."""

    def __init__(self, context: DeviceContext, device: TorchDevice, nbytes: int) -> None:
        super().__init__(context, f"host buffer of {nbytes} bytes")
        self.nbytes, self.event = nbytes, Event(context, device)
        self._memory: Any = device.allocate_host(nbytes)
        self.source: Tensor | None = None  # kept until it is copied here

    @property
    def parts(self) -> tuple[DeviceResource, ...]:
        return (self.event,)

    def view(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return its first bytes as a tensor."""
        self.check()
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._memory[:nbytes].view(dtype).view(shape)

    def release(self) -> None:
        if not self.event.freed:
            self.event.end()
        self._memory = self.source = None


class HostBufferPool:
    """Buffers of powers of two bytes. Idle ones are detached.

    `put_back` may be called in any thread. A buffer is used again when its event is complete.
    """

    def __init__(self, context: DeviceContext, device: TorchDevice) -> None:
        self.context, self.device = context, device
        self.num_allocated = 0
        self._buffers: set[HostBuffer] = set()
        self._returned: deque[HostBuffer] = deque()
        self._idle: dict[int, list[HostBuffer]] = {}  # by bytes, complete ones

    def take(self, nbytes: int) -> HostBuffer:
        """Return a buffer of at least `nbytes`, bound to this thread's context."""
        self._sort_returned()
        size = max(MIN_BUFFER_BYTES, 1 << (max(nbytes, 1) - 1).bit_length())
        if idle := self._idle.get(size):
            return idle.pop().sprout(self.context)
        buffer = HostBuffer(self.context, self.device, size)
        self.num_allocated += 1
        self._buffers.add(buffer)
        return buffer

    def put_back(self, buffer: HostBuffer) -> None:
        """Take a buffer back whose event was recorded after its last use."""
        buffer.detach()
        self._returned.append(buffer)

    def close(self) -> None:
        """Free all buffers, also those in use, after their events."""
        for buffer in self._buffers:
            if not buffer.freed:
                buffer.end()
        self._buffers.clear()
        self._returned.clear()
        self._idle.clear()

    def _sort_returned(self) -> None:
        """Move buffers that the device is done with to the idle ones, or free them where there are too many."""
        for _ in range(len(self._returned)):
            buffer = self._returned.popleft()
            if buffer.freed:
                continue
            buffer.sprout(self.context)
            if not buffer.event.is_complete():
                self._returned.append(buffer.sporulate())
                continue
            buffer.source = None
            idle_bytes = sum(size * len(buffers) for size, buffers in self._idle.items())
            if idle_bytes + buffer.nbytes > MAX_IDLE_BYTES:
                self._buffers.discard(buffer)
                buffer.end()
            else:
                self._idle.setdefault(buffer.nbytes, []).append(buffer.sporulate())


class TorchResources:
    """The streams, events and buffers of one back-end, and the copies that use them."""

    def __init__(self, context: DeviceContext, device: TorchDevice) -> None:
        self.context, self.device = context, device
        self.buffers = HostBufferPool(context, device)
        self.copies = Stream(context, device, "stream of copies to the host")
        self.launched = Event(context, device)

    def upload(self, array: np.ndarray, target: Tensor | None = None) -> Tensor:
        """Begin to copy an array to the device, after what was launched before. The array may be changed at once.

        target   a tensor of the same shape and type to copy into, in the place of a new one
        """
        if array.nbytes > MAX_UPLOAD_BYTES:
            copied = torch.from_numpy(np.array(array, order="C"))
            return copied.to(self.device.device) if target is None else target.copy_(copied)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        uploaded = torch.empty(array.shape, dtype=dtype, device=self.device.device) if target is None else target
        buffer = self.buffers.take(array.nbytes)
        try:
            staged = buffer.view(array.shape, dtype)
            np.copyto(staged.numpy(), array)
            uploaded.copy_(staged, non_blocking=True)
        finally:
            buffer.event.record()
            self.buffers.put_back(buffer)
        return uploaded

    def start_copy(self, stored: Tensor) -> HostBuffer:
        """Begin to copy a tensor to the host, after what was launched before, beside what is launched later."""
        buffer = self.buffers.take(stored.nbytes)
        buffer.source = stored
        try:
            self.launched.record()
            self.copies.wait(self.launched)
            with self.copies.launches():
                buffer.view(tuple(stored.shape), stored.dtype).copy_(stored, non_blocking=True)
                buffer.event.record()
        except BaseException:
            self.buffers.put_back(buffer)
            raise
        return buffer

    def close(self) -> None:
        """Free them. Copies to the host that are still referenced are left to the context, which reports them."""
        self.buffers.close()
        self.copies.free()
        self.launched.free()
