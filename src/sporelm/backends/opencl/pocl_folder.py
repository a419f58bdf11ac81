"""A folder of this process for PoCL's compiler.

PoCL keeps compiled kernels in a folder of the user's, and reads and writes it without locks. While one process compiles
a program, another that asks for the binary of the same program reads half-written or vanished files: it crashes, or
gets a binary that crashes later (pocl issues 430 and 1480). Our own cache is shared and safe (`file_cache`), so PoCL
gets a folder that ends with the process, in POCL_CACHE_DIR. A folder that the user chose there is left alone.
"""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import IO

from sporelm import settings
from sporelm.backends.file_cache import ObjectCache

VARIABLE = "POCL_CACHE_DIR"  # which PoCL reads when its devices are first listed
FOLDER = "pocl"  # in the folder of compiled code
TEMPORARY_PREFIX = "sporelm-pocl-"
LOCK_SUFFIX = ".lock"  # of the file that the owner of a folder locks
PARENT_LOCK = ".lock"  # the file that a process locks while it creates or removes folders

_held: list[tuple[Path, IO[bytes] | None]] = []  # the folder of this process, and its lock file


@cache
def use_own_folder() -> None:
    """Give PoCL a folder of this process, once. Folders of processes that were killed are removed."""
    binaries = ObjectCache()
    if binaries.refusal is not None:
        use_temporary_folder()
        return
    parent = binaries.folder / FOLDER
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        with lock_parent(parent) as is_locked:
            if is_locked:
                remove_abandoned(parent)
            _held.append(create_folder(parent, needs_lock=is_locked))
    except OSError:
        use_temporary_folder()
        return
    atexit.register(remove_own_folder)
    settings.set_library_variable(VARIABLE, str(_held[-1][0]), replaced=str(parent))


def use_temporary_folder() -> None:
    """Give PoCL a temporary folder that ends with the process: the folder of compiled code cannot be used.

    A process that is killed leaves it behind.
    """
    with suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        _held.append((folder, None))
        atexit.register(remove_own_folder)
        settings.set_library_variable(VARIABLE, str(folder), replaced=str(folder.with_name(TEMPORARY_PREFIX)))


@contextmanager
def lock_parent(parent: Path) -> Iterator[bool]:
    """Let no other process create or remove folders in the block. False on systems without such locks."""
    with (parent / PARENT_LOCK).open("a+b") as file:
        yield _lock(file)


def create_folder(parent: Path, *, needs_lock: bool) -> tuple[Path, IO[bytes]]:
    """Return a new folder, and its open lock file, which exists before it. Raise OSError."""
    folder = parent / token_hex(8)
    file = _lock_path(folder).open("x+b")
    try:
        if not _lock(file, waits=False) and needs_lock:
            raise OSError(f"{folder}: its lock file cannot be locked")
        folder.mkdir(mode=0o700)
    except OSError:
        file.close()
        _lock_path(folder).unlink(missing_ok=True)
        raise
    return folder, file


def remove_own_folder() -> None:
    """Remove the folder of this process, at its end."""
    while _held:
        folder, file = _held.pop()
        shutil.rmtree(folder, ignore_errors=True)
        if file is not None:
            file.close()
            with suppress(OSError):
                _lock_path(folder).unlink()


def remove_abandoned(parent: Path) -> None:
    """Remove folders whose process has ended without doing so: the system has released their locks.

    The caller holds the lock of the parent. A folder without a lock file has no process either.
    """
    for path in parent.glob(f"?*{LOCK_SUFFIX}"):
        with suppress(OSError), path.open("r+b") as file:
            if _lock(file, waits=False):
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                path.unlink()
    for path in parent.iterdir():
        if path.is_dir() and not _lock_path(path).exists():
            shutil.rmtree(path, ignore_errors=True)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK_SUFFIX)


def _lock(file: IO[bytes], *, waits: bool = True) -> bool:
    """Lock a file until it is closed. False if another process has it, and on systems without such locks."""
    try:
        import fcntl
    except ImportError:
        return False
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        return True
    return False
