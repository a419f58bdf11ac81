"""Work that finishes even if the task that waits for it is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_tasks = set[asyncio.Task[Any]]()  # the event loop holds only weak references


def spawn(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run a coroutine in a task of its own, which nothing needs to wait for."""
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def shielded(work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
    """Return the result of a coroutine. It finishes even if the caller is cancelled; then `undo` gets its result."""
    task = spawn(work)

    def undo_result(done: "asyncio.Task[T]") -> None:
        if not done.cancelled() and done.exception() is None and undo is not None:
            undo(done.result())

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(undo_result)
        raise
