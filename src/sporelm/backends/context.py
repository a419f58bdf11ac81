"""Contexts: the owner of a device's resources, where they may be used, and where they are freed.

A resource (stream, event, buffer, captured graph, compiled program) belongs to the context in which it was created.
Used outside it, or after its end, it raises ContextError. `sporulate` detaches a resource, so that it can be stored or
handed to another thread; `sprout` binds it again, to its own context only. Devices whose contexts are current in one
thread at a time have a `DeviceContext`. On a CPU every thread is inside.
"""

import gc
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any, NoReturn, Self
from weakref import WeakSet

from sporelm.errors import ContextError

_EVERY_THREAD: AbstractContextManager[None] = nullcontext()


class Context:
    """The owner of resources until it is closed. It does not keep them alive: a resource without references is
    collected."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self._live: WeakSet[Resource] = WeakSet()

    def check(self) -> None:
        """Raise ContextError where this context's resources may not be used."""
        if self.closed:
            raise ContextError(f"context {self.name}: closed. Open a new back-end.")

    def current(self) -> AbstractContextManager[None]:
        """Make the context current in this thread for a block. Here nothing is to be done."""
        return _EVERY_THREAD

    def lock(self) -> AbstractContextManager[Any]:
        """Return a reentrant lock, for an engine that works in this context: under it the context is current."""
        return RLock()

    @property
    def live(self) -> list["Resource"]:
        """Return its resources that are not freed yet, detached ones included."""
        return [resource for resource in self._live if not resource.freed]

    def adopt(self, resource: "Resource") -> None:
        """Register a new resource. Raise ContextError after `close`."""
        self.check()
        self._live.add(resource)

    def close(self) -> list[str]:
        """Free all resources. Return the labels of the resources that were still referenced: the leaks. A second call
        does nothing."""
        if self.closed:
            return []
        if self.live:
            gc.collect()  # resources that only reference cycles hold are not leaks
        leaked = self.live
        for resource in leaked:
            resource.end()
        self.closed = True
        return sorted(resource.label for resource in leaked)


class Resource:
    """A resource of a context. Subclasses free it in `release`."""

    bound = False  # whether it may be used; read at each step, so a plain attribute
    freed = False

    def __init__(self, context: Context, label: str) -> None:
        """Bind to `context`. Raise ContextError if that is closed."""
        self.context, self.label = context, label
        context.adopt(self)
        self.bound = True

    def check(self) -> None:
        """Raise ContextError unless it may be used here and now."""
        if not self.bound:
            self.refuse()
        self.context.check()

    def refuse(self) -> NoReturn:
        """Raise the ContextError that explains why this resource is not bound."""
        if self.freed:
            raise ContextError(f"{self.label} was freed by context {self.context.name}; create it again")
        raise ContextError(f"{self.label} is detached from context {self.context.name}; sprout() it there before use")

    def sporulate(self) -> Self:
        """Detach, to be stored or handed to another thread. Until `sprout` every use raises ContextError."""
        self.check()
        self.bound = False
        return self

    def sprout(self, context: Context) -> Self:
        """Bind again. Raise ContextError unless `context` is its owner and is open, and the resource is not freed."""
        self.check_owner(context)
        context.check()
        self.bound = True
        return self

    def check_owner(self, context: Context) -> None:
        """Raise ContextError unless `context` is its owner, and it is not freed."""
        if context is not self.context:
            raise ContextError(f"{self.label} belongs to context {self.context.name}, not to {context.name}")
        if self.freed:
            self.refuse()

    def free(self) -> None:
        """Free it, inside its context. Raise ContextError if it is detached. A second call does nothing."""
        if not self.freed:
            self.check()
            self.end()

    def end(self) -> None:
        """Free it, for `free` and the context's `close`."""
        self.bound, self.freed = False, True
        self.release()

    def release(self) -> None:
        """Free what the device holds for it."""
