"""Work that takes an engine several steps of its own, so that others' steps can run between them."""

from collections.abc import Generator
from typing import TypeVar

from sporelm.engine import Engine

T = TypeVar("T")
Stepwise = Generator[bool, None, T]  # yields after each step whether it still holds pages; its value is the result


def room_for(engine: Engine, length: int) -> Stepwise[None]:
    """Wait until a text of this length has room beside others' texts."""
    while not engine.has_room(length):
        yield False


def whole(work: Stepwise[T]) -> T:
    """The result of all steps, one after the other."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
