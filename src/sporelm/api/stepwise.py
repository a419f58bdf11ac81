"""Work that takes an engine several steps of its own, so that others' steps can run between them."""

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from sporelm.engine import Engine

T = TypeVar("T")
Stepwise = Generator[bool, None, T]  # yields after each step whether it still holds pages; its value is the result


def whole(work: Stepwise[T], engine: Engine) -> T:
    """The result of all steps, one after the other. While it waits for pages, those who have them are served; if that
    fails, it is left, and nobody waits for it."""
    with closing(work):
        while True:
            try:
                holds = next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            if not holds and engine.scheduler.texts.waiting:
                engine.step()
