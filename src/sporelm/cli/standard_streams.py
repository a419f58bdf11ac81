"""Standard streams that were closed before the program started, as by `<&-`, `>&-` and `2>&-`.

Python sets such a stream to None, and the next opened file gets the free descriptor, so that a library's output would
end up in that file. Therefore closed descriptors are reopened on the null device.
"""

import io
import os
import sys
from contextlib import suppress

from sporelm.errors import SporeError

INPUT_CLOSED = "standard input: cannot be read, because it is closed. Connect it to a file, a pipe or a terminal."
OUTPUT_CLOSED = "standard output: cannot be written, because it is closed. Connect it to a file, a pipe or a terminal."


class ClosedInput(io.RawIOBase):
    """A standard input whose reads raise SporeError: a closed input is not an empty one."""

    def fileno(self) -> int:
        """Return the descriptor, which is the null device's."""
        return 0

    def readable(self) -> bool:
        """Return True, so that the read itself raises the error with its reason."""
        return True

    def readinto(self, buffer: object) -> int:
        """Raise SporeError."""
        raise SporeError(INPUT_CLOSED)


def reopen_closed() -> bool:
    """Reopen every closed standard stream; return whether standard output was closed.

    Reading from a closed input raises SporeError. Text printed to a closed output or error is dropped.
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
    """Raise SporeError if standard input is closed, for commands that first read it late."""
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
