"""Ctrl-C, and signals that end a program, noted and not raised, so that no step of the engine is cut in the middle."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_flags: list[list[bool]] = []  # of what looks at them now, the innermost last
_ending: list[int] = []  # the signal that ends the program


@contextlib.contextmanager
def interrupt_flag() -> Iterator[list[bool]]:
    """A list that the first Ctrl-C fills, or a signal that ends the program; a second one raises KeyboardInterrupt, for
    what does not look at the list."""
    flag: list[bool] = []

    def note(number: int, frame: FrameType | None) -> None:
        if flag:
            raise KeyboardInterrupt
        flag.append(True)

    before = signal.signal(signal.SIGINT, note)
    _flags.append(flag)
    try:
        yield flag
    finally:
        _flags.pop()
        signal.signal(signal.SIGINT, before)


def watch_ends() -> None:
    """Have what asks a program to end, or says that its terminal has gone, be taken as Ctrl-C: what it writes is whole
    or goes away. What is ignored, as `nohup` has it, stays so."""

    def note(number: int, frame: FrameType | None) -> None:
        note_end(number)
        others = signal.getsignal(signal.SIGTERM)
        if callable(others) and others is not note:  # a server hears of it in its own way: it finishes its answers
            others(number, frame)
        elif _flags and not _flags[-1]:
            _flags[-1].append(True)
        else:
            for each in endings():
                signal.signal(each, signal.SIG_IGN)  # more of them do not stop the tidying up
            raise KeyboardInterrupt

    for each in endings():
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, note)


def endings() -> list[int]:
    """The signals that ask a program to end; each system has some of them."""
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")
    return [number for name in names if (number := getattr(signal, name, None)) is not None]


def note_end(number: int) -> None:
    """Remember that a signal ends the program; the first one counts."""
    if not _ending:
        _ending.append(number)


def is_ending() -> bool:
    """Whether a signal ends the program."""
    return bool(_ending)


def exit_code(code: int) -> int:
    """What the program ends with: of one that a signal stopped 128 and its number, as shells have it."""
    return 128 + _ending[0] if _ending and code == 130 else code
