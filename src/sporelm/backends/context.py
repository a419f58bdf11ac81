"""Contexts: who owns a device's resources, where they may be used, and where they are freed.

A resource (stream, event, buffer, captured graph, compiled program) belongs to the context in which it was made. Used
outside it, or after its end, it raises ContextError. `sporulate` detaches a resource, so that it can be stored or
handed to another thread; `sprout` binds it again, to its own context and to no other. Devices whose contexts are
current in one thread at a time override `Context.check`; on a CPU every thread is inside.
"""

import gc
from typing import NoReturn, Self
from weakref import WeakSet

from sporelm.errors import ContextError


class Context:
    """Owns resources until it is closed. It does not keep them alive: one that nobody holds is gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self._live: WeakSet[Resource] = WeakSet()

    def check(self) -> None:
        """Raise ContextError where this context's resources may not be used."""
        if self.closed:
            raise ContextError(f"context {self.name} is closed; open a new back-end")

    @property
    def live(self) -> list["Resource"]:
        """Its resources that are not freed yet, the detached ones too."""
        return [resource for resource in self._live if not resource.freed]

    def adopt(self, resource: "Resource") -> None:
        """Take a new resource in. Raises ContextError after `close`."""
        self.check()
        self._live.add(resource)

    def close(self) -> list[str]:
        """Free what is left, and give the names of what somebody still held: the leaks. Again: nothing."""
        if self.closed:
            return []
        if self.live:
            gc.collect()  # what only cycles hold is no leak
        leaked = self.live
        for resource in leaked:
            resource.end()
        self.closed = True
        return sorted(resource.label for resource in leaked)


class Resource:
    """One thing that a context owns. Subclasses say in `release` how it is given back."""

    bound = False  # whether it may be used; read at each step, so a plain attribute
    freed = False

    def __init__(self, context: Context, label: str) -> None:
        """Bind to `context`. Raises ContextError if that is closed."""
        self.context, self.label = context, label
        context.adopt(self)
        self.bound = True

    def check(self) -> None:
        """Raise ContextError unless it may be used here and now."""
        if not self.bound:
            self.refuse()
        self.context.check()

    def refuse(self) -> NoReturn:
        """Raise the ContextError that says why this resource is not bound."""
        if self.freed:
            raise ContextError(f"{self.label} was freed by context {self.context.name}; make it anew")
        raise ContextError(f"{self.label} is detached from context {self.context.name}; sprout() it there before use")

    def sporulate(self) -> Self:
        """Detach, to be stored or handed to another thread; until `sprout` every use raises ContextError."""
        self.check()
        self.bound = False
        return self

    def sprout(self, context: Context) -> Self:
        """Bind again. Raises ContextError if `context` is not the one that owns it, is closed, or if it was freed."""
        if context is not self.context:
            raise ContextError(f"{self.label} belongs to context {self.context.name}, not to {context.name}")
        if self.freed:
            self.refuse()
        context.check()
        self.bound = True
        return self

    def free(self) -> None:
        """Give it back, inside its context. Raises ContextError if it is detached. Again: nothing."""
        if not self.freed:
            self.check()
            self.end()

    def end(self) -> None:
        """What `free` and the context's close do."""
        self.bound, self.freed = False, True
        self.release()

    def release(self) -> None:
        """Give back what the device holds for it."""
