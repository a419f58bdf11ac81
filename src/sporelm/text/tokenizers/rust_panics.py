"""Keeps reports of Rust panics from stderr.

Rust itself prints the report to file descriptor 2, before Python sees an exception, and Python cannot set a panic hook.
So while a Rust library reads a file, the descriptor points to a temporary file. A thread forwards what is printed there
to stderr at once, so that output of other threads is not delayed. From the beginning of a report on, output waits until
the file is read; then all of it is forwarded except the reports.

A temporary file and not a pipe: a pipe that is full would block a library that holds the GIL.
"""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FORWARD_SECONDS = 0.02  # between two looks for output to forward

_LOCK = threading.RLock()
_depth = 0
_REPORT = re.compile(
    rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n"  # position in the source
    rb"(?:(?!note: run with|stack backtrace:|thread ')[^\n]*\n)*"  # message
    rb"(?:stack backtrace:\n(?:[ \t]+[^\n]*\n)*)?"
    rb"(?:note: [^\n]*\n)?"
)
_SHORT_REPORT = re.compile(rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n(?:[^\n]*\n)?(?:note: [^\n]*\n)?")
_REPORT_START = b"thread '"


@contextmanager
def hide_panics() -> Iterator[None]:
    """Keep reports of panics inside the block from stderr; forward everything else.

    One thread at a time: others wait. Without a descriptor 2, or room for a temporary file, nothing is hidden.
    """
    global _depth
    with _LOCK:
        if _depth:
            yield
            return
        try:
            stderr = os.dup(2)
        except OSError:
            yield
            return
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 -- closed below
        except OSError:
            os.close(stderr)
            yield
            return
        forwarder = _Forwarder(file.fileno(), stderr)
        _depth += 1
        _flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            _depth -= 1
            forwarder.finish()
            file.close()
            os.close(stderr)


class _Forwarder:
    """Copies what is appended to a file to stderr, up to the first report of a panic; `finish` copies the rest."""

    def __init__(self, file: int, stderr: int) -> None:
        self._file = file
        self._stderr = stderr
        self._offset = 0
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        if hasattr(os, "pread"):  # elsewhere reading would move the position at which others write
            self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
            with suppress(RuntimeError):  # no thread can be started: all output is forwarded at the end
                self._thread.start()

    def finish(self) -> None:
        """Forward the remaining output without reports of panics."""
        self._finished.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._write(remove_reports(self._read()))

    def _run(self) -> None:
        while not self._finished.wait(FORWARD_SECONDS):
            data = self._read()
            length = find_forwardable_length(data)
            self._write(data[:length])
            self._offset += length

    def _read(self) -> bytes:
        size = os.fstat(self._file).st_size - self._offset
        if size <= 0:
            return b""
        if hasattr(os, "pread"):
            return os.pread(self._file, size, self._offset)
        os.lseek(self._file, self._offset, os.SEEK_SET)
        return os.read(self._file, size)

    def _write(self, data: bytes) -> None:
        while data:
            count = 0
            with suppress(OSError):
                count = os.write(self._stderr, data)
            data = data[count:] if count else b""


def find_forwardable_length(data: bytes) -> int:
    """Return the length of the prefix of `data` that cannot belong to a report: complete lines before the first one.

    An empty line at the end is held back, since a report begins with one.
    """
    start = data.find(_REPORT_START)
    if start < 0:
        start = data.rfind(b"\n") + 1
        last_line = data[start:]
        if not last_line.startswith(_REPORT_START[: len(last_line)]):
            return len(data)
    return start - data[:start].endswith(b"\n\n") - (data[:start] == b"\n")


def remove_reports(data: bytes) -> bytes:
    """Return `data` without reports of panics."""
    pattern = _REPORT if b"note: run with" in data or b"stack backtrace:" in data else _SHORT_REPORT
    return pattern.sub(b"", data)


def _flush() -> None:
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.flush()
