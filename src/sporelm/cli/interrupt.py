"""Ctrl-C and termination signals: recorded instead of raised, so that no engine step is cut short."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NoReturn

RERAISE_DELAY_SECONDS = 0.01  # in which Python leaves the place where an exception is lost
_flags: list[list[bool]] = []  # of the active `interrupt_flag` contexts, the innermost last
_termination: list[int] = []  # the signal that ends the program
_lost: list[bool] = []  # filled when a KeyboardInterrupt came where nothing can be raised


@contextlib.contextmanager
def interrupt_flag() -> Iterator[list[bool]]:
    """Yield a list that the first Ctrl-C or termination signal fills; a second one raises KeyboardInterrupt."""
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


def handle_termination() -> None:
    """Handle termination signals like Ctrl-C, so that files are written completely or removed.

    A signal that is ignored, as by `nohup`, stays ignored.
    """

    def note(number: int, frame: FrameType | None) -> None:
        record_termination(number)
        if _flags and not _flags[-1]:
            _flags[-1].append(True)
        else:
            raise_once(termination_signals())

    for each in termination_signals():
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, note)


def raise_once(numbers: Iterable[int]) -> NoReturn:
    """Raise KeyboardInterrupt; further signals of these numbers do not interrupt the cleanup."""
    for each in numbers:
        signal.signal(each, raise_if_lost)
    raise KeyboardInterrupt


def raise_if_lost(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt if the first one was lost."""
    if _lost:
        _lost.clear()
        raise KeyboardInterrupt


def reraise_lost_interrupts() -> None:
    """Raise a KeyboardInterrupt again that came where Python only prints it: in a finalizer or an import callback."""
    before = sys.unraisablehook

    def reraise(number: int) -> None:
        time.sleep(RERAISE_DELAY_SECONDS)
        _lost.append(True)
        if sys.platform == "win32":
            signal.raise_signal(number)
        else:  # interrupts a blocking call of the main thread
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def hook(what: "sys.UnraisableHookArgs") -> None:
        if what.exc_type is KeyboardInterrupt:
            number = _termination[0] if _termination else signal.SIGINT
            threading.Thread(target=reraise, args=(number,), daemon=True).start()
        else:
            before(what)

    sys.unraisablehook = hook


def termination_signals() -> list[int]:
    """Return the signals that ask a program to end; each system has some of them."""
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")
    return [number for name in names if (number := getattr(signal, name, None)) is not None]


def record_termination(number: int) -> None:
    """Record that a signal ends the program; the first one counts."""
    if not _termination:
        _termination.append(number)


def is_terminating() -> bool:
    """Return whether a signal ends the program."""
    return bool(_termination)


def exit_code(code: int) -> int:
    """Return the program's exit code: after a termination signal 128 plus its number, as in shells."""
    return 128 + _termination[0] if _termination and code == 130 else code
