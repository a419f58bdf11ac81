"""Locks on open files that the system releases when their process ends, also after a kill."""

import os
import sys
from errno import EACCES, EAGAIN, EDEADLK
from pathlib import Path
from typing import BinaryIO


def try_lock(file: BinaryIO) -> bool | None:
    """Lock an open file until it is closed, without waiting. Return False if another process holds the lock.

    Return None where the file system does not support locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)  # the byte at the file's position is the one that is locked
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (EACCES, EAGAIN, EDEADLK) else None
    return True


def take(file: BinaryIO) -> bool:
    """Lock an open file as `try_lock` does; return True as well where the file system does not support locks."""
    return try_lock(file) is not False


def is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether an open file is the one at this path, and was not removed meanwhile."""
    if sys.platform == "win32":  # where an open file cannot be removed
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
