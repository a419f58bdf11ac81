"""The private folder of a group of processes: their socket, and the memory that they share until all have attached."""

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER_PREFIX = "sporelm-ranks-"  # then the process id of rank 0


class RankFolder:
    """A folder with mode 0700 that is locked while it is used.

    The lock ends with its process, however that ends. A process id would not do: `/dev/shm` may be shared by containers
    that do not see each other's processes.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        """Use `create`."""
        self.path = path
        self._descriptor = descriptor  # of the locked folder; None where folders cannot be locked

    @classmethod
    def create(cls, parent: Path) -> "RankFolder":
        """Return a new folder, and remove the folders that killed processes have left behind."""
        for path in parent.glob(f"{FOLDER_PREFIX}*"):
            with suppress(OSError):
                _remove_unused(path)
        while True:
            path = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=parent))
            if sys.platform == "win32":
                return cls(path, None)
            with suppress(FileNotFoundError):  # another process has removed it before it was locked
                descriptor = _lock(path)
                if descriptor is not None:
                    return cls(path, descriptor)

    def close(self) -> None:
        """Remove the folder. Closing again does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return a descriptor of a folder that is locked until it is closed; None if another process has locked it. Raises
    FileNotFoundError if the folder was removed meanwhile."""
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_unused(path: Path) -> None:
    """Remove a folder of this user that no process has locked."""
    if sys.platform == "win32" or path.stat().st_uid != os.getuid():
        return
    descriptor = _lock(path)
    if descriptor is not None:
        RankFolder(path, descriptor).close()
