"""Ctrl-C, noted and not raised, so that no step of the engine is cut in the middle."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupt_flag() -> Iterator[list[bool]]:
    """A list that the first Ctrl-C fills; a second one raises KeyboardInterrupt, for what does not look at the list."""
    flag: list[bool] = []

    def note(number: int, frame: FrameType | None) -> None:
        if flag:
            raise KeyboardInterrupt
        flag.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
