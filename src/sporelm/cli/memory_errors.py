"""Recognizes errors caused by a shortage of memory, whatever their type."""

import sys
from errno import ENOMEM

from sporelm.errors import MemoryShortage

REMEDY = "try a smaller --max-context or a smaller model"
# Messages of dlopen, mmap and threads, and of llvmlite, which count only if the process has a limit.
_PHRASES = ("failed to map segment", "cannot allocate memory", "can't start new thread")
_LIMITED_PHRASES = ("could not find/load shared object", "error return without exception set")


def is_memory_shortage(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, comes from a shortage of memory.

    A MemoryShortage does not count: its own message says more.
    """
    limited = address_space_limit() is not None
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryShortage):
            return False
        if isinstance(current, MemoryError) or (isinstance(current, OSError) and current.errno == ENOMEM):
            return True
        if isinstance(current, ImportError | OSError | RuntimeError | SystemError):
            text = str(current).lower()
            if any(phrase in text for phrase in _PHRASES):
                return True
            if limited and any(phrase in text for phrase in _LIMITED_PHRASES):
                return True
        current = current.__cause__ or current.__context__
    return False


def address_space_limit() -> int | None:
    """Return the bytes of memory that the process may map (`ulimit -v`); None without a limit, and on Windows."""
    if sys.platform == "win32":
        return None
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError, ValueError):  # no memory for the module itself, or the system has no such limit
        return None
    return None if limit == resource.RLIM_INFINITY else limit


def out_of_memory() -> str:
    """Return the line for a shortage of memory."""
    limit = address_space_limit()
    if limit is None:
        return f"out of memory: {REMEDY}"
    return f"out of memory: the process may map {limit / 1e6:.0f} MB (ulimit -v). Raise the limit, or {REMEDY}."
