"""Ctrl-C, and signals that end a program, noted and not raised, so that no step of the engine is cut in the middle."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NoReturn

PAUSE_S = 0.01  # in which the place is left where an exception is lost
_flags: list[list[bool]] = []  # of what looks at them now, the innermost last
_ending: list[int] = []  # the signal that ends the program
_lost: list[bool] = []  # filled when a KeyboardInterrupt came where nothing can be raised


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
        if _flags and not _flags[-1]:
            _flags[-1].append(True)
        else:
            raise_once(endings())

    for each in endings():
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, note)


def raise_once(numbers: Iterable[int]) -> NoReturn:
    """Raise KeyboardInterrupt; more of these signals do not stop the tidying up."""
    for each in numbers:
        signal.signal(each, raise_if_lost)
    raise KeyboardInterrupt


def raise_if_lost(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt if the first one was lost."""
    if _lost:
        _lost.clear()
        raise KeyboardInterrupt


def raise_what_is_lost() -> None:
    """Have a KeyboardInterrupt raised again that came where Python can only print it: in a finalizer, or in a callback
    of the import system."""
    before = sys.unraisablehook

    def again(number: int) -> None:
        time.sleep(PAUSE_S)
        _lost.append(True)
        if sys.platform == "win32":
            signal.raise_signal(number)
        else:  # the main thread may wait for something, which it then leaves
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def hook(what: "sys.UnraisableHookArgs") -> None:
        if what.exc_type is KeyboardInterrupt:
            number = _ending[0] if _ending else signal.SIGINT
            threading.Thread(target=again, args=(number,), daemon=True).start()
        else:
            before(what)

    sys.unraisablehook = hook


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
