"""Calls of the system with which ranks sleep and wake each other: futexes on Linux, short sleeps elsewhere."""

import ctypes
import platform
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

FUTEX_WAIT, FUTEX_WAKE = 0, 1  # between processes
FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221}  # little-endian
SLEEP_NANOSECONDS = 2_000_000  # of one sleep on a futex: a wake-up that was missed is made good after it
SLEEP_MICROSECONDS = 50  # of one `usleep`; `Sleep` has no less than a millisecond
EVERYONE = 0x7FFFFFFF


@cache
def futex_number() -> int | None:
    """Return the number of the system call, or None where ranks sleep for a short time instead."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    return FUTEX_NUMBERS.get(platform.machine())


@cache
def park_address() -> int:
    """Return the address of the function that native code calls to sleep.

    It is `syscall` where there are futexes, else `Sleep` on Windows, else `usleep`.
    """
    if sys.platform == "win32":
        return _address(ctypes.windll.kernel32.Sleep)
    library = ctypes.CDLL(None)
    return _address(library.usleep if futex_number() is None else library.syscall)


def sleep_words() -> list[int]:
    """Return the time of one sleep as that function reads it from memory: seconds and nanoseconds, or one number."""
    if futex_number() is not None:
        return [0, SLEEP_NANOSECONDS]
    return [1 if sys.platform == "win32" else SLEEP_MICROSECONDS]


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def wake_sleepers(address: int) -> None:
    """Wake all ranks that sleep on the word at an address. Does nothing where sleeps are short."""
    number = futex_number()
    if number is not None:
        _syscall()(number, address, FUTEX_WAKE, EVERYONE, None, None, 0)


@cache
def _syscall() -> Callable[..., int]:
    call = ctypes.CDLL(None).syscall
    word, pointer = ctypes.c_long, ctypes.c_void_p
    call.argtypes, call.restype = [word, pointer, word, word, pointer, pointer, word], word
    return call
