"""Progress of long work that several threads do."""

from collections.abc import Callable
from threading import Lock

from sporelm.backends.protocol import Progress as Progress


def count_progress(progress: Progress | None, phase: str, total: int) -> Callable[[int], None]:
    """A function that adds up what is done and reports the sum, one thread at a time."""
    lock, done = Lock(), 0

    def add(more: int) -> None:
        nonlocal done
        with lock:
            done += more
            if progress:
                progress(phase, done, total)

    return add
