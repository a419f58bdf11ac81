"""One process at a time in a folder: a lock that the system lets go of when the process ends, however it does."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EAGAIN, EDEADLK
from pathlib import Path
from typing import BinaryIO

from sporelm.errors import ModelNotFound

LOCK = "lock"


@contextmanager
def held_alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the folder in which the model `name` is gathered; it is made, and goes away if nothing is in it at the end.

    Where the disk knows no locks nothing is held. Raises ModelNotFound if another process holds it.
    """
    with _locked(folder, name):
        try:
            yield
        finally:
            if sys.platform != "win32":  # which removes no file that is open
                _remove_empty(folder)
    if sys.platform == "win32":
        _remove_empty(folder)


def _locked(folder: Path, name: str) -> BinaryIO:
    """The file whose lock is ours, in the folder that is there now."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = (folder / LOCK).open("wb")
        except FileNotFoundError:  # the one before us took the folder away
            continue
        if not take(file):
            file.close()
            raise ModelNotFound(f"{name} is being fetched by another process: wait for it")
        if sys.platform == "win32" or _is_there(file, folder / LOCK):
            return file
        file.close()


def take(file: BinaryIO) -> bool:
    """Lock an open file until it is closed; False where another has it. A disk that knows no locks refuses nobody."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)  # what is locked is the byte at the file's place
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (EACCES, EAGAIN, EDEADLK)
    return True


def _is_there(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one at this place, not one that was taken away meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        if all(path.name == LOCK for path in folder.iterdir()):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
