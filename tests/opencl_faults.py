"""Calls of pyopencl that fail, as those of a driver that has lost its device."""

from collections.abc import Callable
from typing import Any

import pyopencl as cl
import pytest

# The calls whose first argument is a queue, and that a step, weights, pages or their end make.
QUEUE_CALLS = ("enqueue_nd_range_kernel", "enqueue_copy", "enqueue_fill_buffer", "enqueue_map_buffer")


def fault(call: str, code: str = "DEVICE_NOT_AVAILABLE") -> cl.Error:
    """Return an error as pyopencl raises it."""
    record = cl._cl._ErrorRecord(call, getattr(cl.status_code, code, -2), call)
    return cl.RuntimeError(record)


class FaultyCalls:
    """Makes calls of pyopencl fail for one back-end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.broken: set[str] = set()
        self.queues: list[Any] = []

    def arm(self, backend: Any) -> None:
        """Watch the calls of a back-end."""
        self.queues.append(backend.queue)
        for name in QUEUE_CALLS:
            self._patch.setattr(cl, name, self._watch(name, getattr(cl, name)))
        finish, broken, queues = cl.CommandQueue.finish, self.broken, self.queues

        def watched_finish(queue: Any) -> None:
            if "finish" in broken and queue in queues:
                raise fault("clFinish")
            finish(queue)

        self._patch.setattr(cl.CommandQueue, "finish", watched_finish)

    def _watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(queue: Any, *arguments: Any, **options: Any) -> Any:
            if name in self.broken and queue in self.queues:
                raise fault(name)
            return call(queue, *arguments, **options)

        return watched
