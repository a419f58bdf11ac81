"""One process at a time in a folder: a lock that the system lets go of when the process ends, however it does."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sporelm.errors import ModelNotFound
from sporelm.files.file_lock import is_at, take, try_lock

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
        if is_at(file, folder / LOCK):
            return file
        file.close()


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Hold a new folder in `parent` whose name begins with `prefix`; it is removed at the end.

    First those are removed that a killed process has left.
    """
    _remove_abandoned(parent, prefix)
    while True:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
            try:
                lock = (Path(name) / LOCK).open("xb")
            except FileNotFoundError:  # as below
                continue
            with lock:
                if take(lock) and is_at(lock, Path(name) / LOCK):
                    yield Path(name)
                    return
        # Another process took the folder for abandoned before it was locked.


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the scratch folders whose lock no process holds."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            with (folder / LOCK).open("r+b") as lock:
                if try_lock(lock) is not True:
                    continue
                if sys.platform != "win32":
                    shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        if all(path.name == LOCK for path in folder.iterdir()):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
