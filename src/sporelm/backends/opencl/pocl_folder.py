"""A folder of this process for PoCL's compiler.

PoCL keeps compiled kernels in a folder of the user's, and reads and writes it without locks. While one process compiles
a program, another that asks for the binary of the same program reads half-written or vanished files: it crashes, or
gets a binary that crashes later (pocl issues 430 and 1480). Our own cache is shared and safe (`file_cache`), so PoCL
gets a folder that ends with the process, in POCL_CACHE_DIR. A folder that the user chose there is left alone.
"""

import atexit
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from sporelm import settings
from sporelm.backends.file_cache import ObjectCache

VARIABLE = "POCL_CACHE_DIR"  # which PoCL reads when its devices are first listed
FOLDER = "pocl"  # in the folder of compiled code
LOCK_SUFFIX = ".lock"  # of the file that the owner of a folder locks

_held: list[tuple[Path, IO[bytes]]] = []  # the folder of this process, and its lock file


@cache
def use_own_folder() -> None:
    """Give PoCL a folder of this process, once. Folders of processes that were killed are removed."""
    binaries = ObjectCache()
    if binaries.refusal is not None:
        return
    parent = binaries.folder / FOLDER
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        remove_abandoned(parent)
        folder = Path(tempfile.mkdtemp(dir=parent))
        file = _lock_path(folder).open("wb")
    except OSError:
        return
    _try_lock(file)
    _held.append((folder, file))
    atexit.register(remove_own_folder)
    settings.set_library_variable(VARIABLE, str(folder), replaced=str(parent))


def remove_own_folder() -> None:
    """Remove the folder of this process, at its end."""
    while _held:
        folder, file = _held.pop()
        shutil.rmtree(folder, ignore_errors=True)
        file.close()
        with suppress(OSError):
            _lock_path(folder).unlink()


def remove_abandoned(parent: Path) -> None:
    """Remove folders whose process has ended without doing so: the system has released their locks."""
    for path in parent.glob(f"*{LOCK_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            if _try_lock(file):
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                path.unlink()


def _lock_path(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK_SUFFIX)


def _try_lock(file: IO[bytes]) -> bool:
    """Lock a file, if no other process has it. False on systems without such locks, where nothing is removed."""
    try:
        import fcntl
    except ImportError:
        return False
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
