"""Work that is done to its end, even if whoever waits for it leaves."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_begun = set[asyncio.Task[Any]]()  # the loop itself would not keep them


def begin(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Have something done for which nobody need wait."""
    task = asyncio.ensure_future(work)
    _begun.add(task)
    task.add_done_callback(_begun.discard)
    return task


async def unbroken(work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
    """What some work gives. It goes on if whoever waits for it leaves, and then `undo` is done with its result."""
    task = begin(work)

    def left(done: "asyncio.Task[T]") -> None:
        if not done.cancelled() and done.exception() is None and undo is not None:
            undo(done.result())

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(left)
        raise
