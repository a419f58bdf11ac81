"""Folder locks between processes. The system releases them when the process ends, also after a kill."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sporelm.backends.file_lock import is_at, take, try_lock
from sporelm.errors import ModelNotFound

LOCK = "lock"


@contextmanager
def lock_model_folder(folder: Path, name: str) -> Iterator[None]:
    """Create and lock the folder into which the model `name` is downloaded; remove it at the end if it is empty.

    File systems without locks are not locked. Raises ModelNotFound if another process has the lock.
    """
    with _open_locked(folder, name):
        try:
            yield
        finally:
            if sys.platform != "win32":  # which removes no file that is open
                _remove_empty(folder)
    if sys.platform == "win32":
        _remove_empty(folder)


def _open_locked(folder: Path, name: str) -> BinaryIO:
    """Open and lock the lock file of the folder that exists now."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = (folder / LOCK).open("wb")
        except FileNotFoundError:  # the previous owner removed the folder
            continue
        if not take(file):
            file.close()
            raise ModelNotFound(f"{name} is being downloaded by another process: wait for it")
        if is_at(file, folder / LOCK):
            return file
        file.close()


@contextmanager
def make_scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a locked folder in `parent` whose name begins with `prefix`, and remove it at the end.

    Folders of killed processes are removed first.
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
        # Another process removed the folder as abandoned before it was locked.


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
