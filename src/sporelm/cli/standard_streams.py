"""Standard input, output and error that were closed before the program began, as `<&-`, `>&-` and `2>&-` leave them.

Python then has None in place of the stream, and the next file that is opened takes its descriptor: what a library
prints would land in that file. So a closed descriptor is opened again on the null device, and the stream with it.
"""

import io
import os
import sys
from contextlib import suppress

from sporelm.errors import SporeError

INPUT_CLOSED = "standard input is closed: nothing can be read from it. Give it a file, a pipe or a terminal."
OUTPUT_CLOSED = "standard output is closed: there is nowhere to print to. Send it to a file, a pipe or a terminal."


class ClosedInput(io.RawIOBase):
    """Standard input that every read refuses: closed is not the same as empty."""

    def fileno(self) -> int:
        """Return the descriptor, which is the null device's."""
        return 0

    def readable(self) -> bool:
        """Return True, so that the error comes from reading and names its reason."""
        return True

    def readinto(self, buffer: object) -> int:
        """Raise SporeError."""
        raise SporeError(INPUT_CLOSED)


def reopen_closed() -> bool:
    """Give every closed standard stream a descriptor and an object; returns whether standard output was closed.

    Reading from a closed input raises SporeError. What is printed to a closed output or error goes nowhere.
    """
    is_output_closed = sys.stdout is None
    if sys.stdin is None:
        _open_null(0, os.O_RDONLY)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(ClosedInput()), encoding="utf-8")
    if sys.stdout is None:
        _open_null(1, os.O_WRONLY)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        _open_null(2, os.O_WRONLY)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    return is_output_closed


def check_input() -> None:
    """Raise SporeError if standard input is closed, for commands that would find out late."""
    buffer = getattr(sys.stdin, "buffer", None)
    if isinstance(getattr(buffer, "raw", None), ClosedInput):
        raise SporeError(INPUT_CLOSED)


def _open_null(target: int, flags: int) -> None:
    """Open the null device as descriptor `target`, unless that is in use."""
    with suppress(OSError):
        os.fstat(target)
        return
    descriptor = os.open(os.devnull, flags)
    if descriptor == target:  # the lowest free one, as on POSIX
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(descriptor, target)
        os.close(descriptor)
