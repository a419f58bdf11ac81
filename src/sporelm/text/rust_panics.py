"""Panics of libraries written in Rust, whose reports are kept from stderr.

The report is printed to descriptor 2 by Rust itself, before Python sees an exception. So while such a library reads a
file, the descriptor points to a temporary file; all of it but reports of panics is printed afterwards.
"""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOCK = threading.RLock()
_depth = 0
_REPORT = re.compile(
    rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n"  # place
    rb"(?:(?!note: run with|stack backtrace:|thread ')[^\n]*\n)*"  # message
    rb"(?:stack backtrace:\n(?:[ \t]+[^\n]*\n)*)?"
    rb"(?:note: [^\n]*\n)?"
)
_SHORT_REPORT = re.compile(rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n(?:[^\n]*\n)?(?:note: [^\n]*\n)?")


@contextmanager
def hide_panics() -> Iterator[None]:
    """Keep reports of panics inside the block from stderr; anything else that is printed there comes at its end.

    One thread at a time: others wait. Without a descriptor 2, or room for a temporary file, nothing is hidden.
    """
    global _depth
    with _LOCK:
        if _depth:
            yield
            return
        try:
            before = os.dup(2)
        except OSError:
            yield
            return
        try:
            held = tempfile.TemporaryFile()  # noqa: SIM115 -- closed below
        except OSError:
            os.close(before)
            yield
            return
        _depth += 1
        _flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(before, 2)
            os.close(before)
            _depth -= 1
            with held:
                held.seek(0)
                text = without_reports(held.read())
            while text:
                written = 0
                with suppress(OSError):
                    written = os.write(2, text)
                text = text[written:] if written else b""


def without_reports(text: bytes) -> bytes:
    """Return what was printed, without reports of panics."""
    pattern = _REPORT if b"note: run with" in text or b"stack backtrace:" in text else _SHORT_REPORT
    return pattern.sub(b"", text)


def _flush() -> None:
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.flush()
