"""The context of an asynchronous device: it is current in one thread at a time (ADR 0048).

`DeviceContext.current` makes it current in the calling thread, and keeps other threads out until the block ends. It
stays current there until another thread enters. Methods of a back-end enter it themselves; a resource never does: it is
used in the thread in which its context is current. A `DeviceResource` can be handed over to another thread:
`sporulate` (detach) here, `sprout` (attach) there.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from threading import RLock, Thread, current_thread
from typing import Any, Self, TypeVar, cast

from sporelm.backends.context import Context, Resource
from sporelm.errors import ContextError, SporeError

Verb = TypeVar("Verb", bound=Callable[..., Any])


def enters_context(verb: Verb) -> Verb:
    """Make the context of a verb's object current while the verb runs."""

    @wraps(verb)
    def inside(self: Any, *args: Any, **options: Any) -> Any:
        with self.context.current():
            return verb(self, *args, **options)

    return cast(Verb, inside)


class DeviceContext(Context):
    """A context that is current in one thread at a time, at first in the one that opens it."""

    def __init__(
        self,
        name: str,
        enter_device: Callable[[], AbstractContextManager[Any]] = nullcontext,
        translate_error: Callable[[BaseException], SporeError | None] = lambda error: None,
    ) -> None:
        """
        enter_device     makes the device current in the calling thread, for libraries that have a current device
        translate_error  returns the error to raise instead of one that ends a block, such as a library's own for too
                         little memory; None: that error
        """
        super().__init__(name)
        self.translate_error = translate_error
        self.thread: Thread = current_thread()
        self._enter_device = enter_device
        self._device: AbstractContextManager[Any] = nullcontext()
        self._depth = 0  # of blocks that the thread is inside of
        self._inside = RLock()
        self._block = _CurrentBlock(self)

    def current(self) -> AbstractContextManager[None]:
        """Make the context current in this thread for a block. Waits while another thread is inside such a block."""
        return self._block

    def lock(self) -> AbstractContextManager[Any]:
        return self._block

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside a block of `current`."""
        return self._depth > 0 and self.thread is current_thread()

    def enter(self) -> None:
        """Begin a block of `current`."""
        self._inside.acquire()
        try:
            if not self._depth:
                self._device = self._enter_device()
                self._device.__enter__()
        except BaseException:
            self._inside.release()
            raise
        self._depth += 1
        self.thread = current_thread()

    def leave(self) -> None:
        """End a block of `current`. The context stays current in this thread until another one enters."""
        self._depth -= 1
        try:
            if not self._depth:
                self._device.__exit__(None, None, None)
        finally:
            self._inside.release()

    def check(self) -> None:
        super().check()
        if self.thread is not current_thread():
            raise ContextError(
                f"context {self.name} is current in thread {self.thread.name}, not in {current_thread().name}; enter "
                "it with `with context.current()`, or sporulate() the resource there and sprout() it here"
            )

    def close(self) -> list[str]:
        with self.current():
            return super().close()


class _CurrentBlock:
    """The block of `DeviceContext.current`, for any number of uses, also inside one another."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._context.enter()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._context.leave()
        if error is not None and (translated := self._context.translate_error(error)) is not None:
            raise translated from error


class DeviceResource(Resource):
    """A resource that a thread can use while its context is current in another: an event, host memory, a copy.

    A thread takes it over with `sprout`. Its `parts`, resources that it owns, go with it.
    """

    thread: Thread | None = None  # the only one that may use it; None: the one in which its context is current

    @property
    def parts(self) -> tuple["DeviceResource", ...]:
        return ()

    def check(self) -> None:
        if not self.bound:
            self.refuse()
        if self.thread is None:
            self.context.check()
        elif self.thread is not current_thread():
            raise ContextError(
                f"{self.label} is bound to thread {self.thread.name}, not to {current_thread().name}; sporulate() it "
                "there and sprout() it here"
            )

    def sporulate(self) -> Self:
        super().sporulate()
        for part in self.parts:
            part.sporulate()
        return self

    def sprout(self, context: Context) -> Self:
        """Bind again: to the context inside a block of its `current`, else to this thread."""
        if self.bound:
            self.check()
        self.check_owner(context)
        is_beside = isinstance(context, DeviceContext) and not context.is_inside
        self.thread = current_thread() if is_beside else None
        self.bound = True
        for part in self.parts:
            part.sprout(context)
        return self

    def detach(self) -> None:
        """Detach without a check, for an owner that stores it after its user has dropped it."""
        self.bound = False
        for part in self.parts:
            part.detach()
