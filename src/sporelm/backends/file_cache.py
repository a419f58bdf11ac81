"""A folder of compiled code that many processes share: the CPU's kernels, and programs of OpenCL.

The folder holds native code, so it must be private: mode 0700 and owned by the user, or it is not used. Files are
written under a temporary name and renamed, so that many processes can share it. Each begins with the hash of its
content, so that a damaged file is compiled again. Above the size limit the least recently used files are removed, but
never the newest. Temporary files of killed processes are removed after an hour.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import time

from sporelm import settings

DIGEST_BYTES = 32  # bytes of sha256 before the code
PART_SUFFIX = ".part"  # ends the name of a file that is being written
STALE_SECONDS = 3600  # seconds after which a temporary file is stale


@contextlib.contextmanager
def replace_atomically(path: Path, keep: bool = True) -> Iterator[Path]:
    """Yield a file beside `path` that replaces it at the end, unless the block fails or `keep` is false. Raise
    OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=PART_SUFFIX)
    os.close(handle)
    try:
        yield Path(name)
        if keep:
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


class ObjectCache:
    """Compiled code by key, in one folder."""

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = folder or settings.KERNEL_CACHE.path
        self.limit = limit if limit is not None else settings.KERNEL_CACHE_BYTES.integer or 0
        self.refusal = self._refusal()
        self._room = 0  # bytes that may be written before the folder is listed again, which takes time

    def _refusal(self) -> str | None:
        """Return why the folder is not used, or None."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = self.folder.lstat()
        except OSError as error:
            return f"{self.folder}: {error.strerror or error}"
        if not stat.S_ISDIR(state.st_mode):
            return f"{self.folder} is not a folder"
        if hasattr(os, "getuid"):
            if state.st_uid != os.getuid():
                return f"{self.folder} belongs to user {state.st_uid}, not to user {os.getuid()}"
            if state.st_mode & 0o077:
                return f"{self.folder} has mode {stat.S_IMODE(state.st_mode):04o}, it must be 0700"
        return None

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def get(self, key: str) -> bytes | None:
        """Return the code under `key`, or None."""
        if self.refusal:
            return None
        try:
            content = self.path(key).read_bytes()
            os.utime(self.path(key))
        except OSError:
            return None
        code = content[DIGEST_BYTES:]
        return code if hashlib.sha256(code).digest() == content[:DIGEST_BYTES] else None

    def put(self, key: str, code: bytes) -> None:
        """Store code. A folder that cannot be written only costs the next start its time."""
        if self.refusal:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=PART_SUFFIX)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                Path(name).replace(self.path(key))
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
            self._room -= DIGEST_BYTES + len(code)
            if self._room < 0:
                self._trim()
        except OSError as error:
            self.refusal = f"{self.folder}: {error.strerror or error}"

    def entries(self) -> list[tuple[float, int, Path]]:
        """Return (last use, bytes, path) of each file, oldest first."""
        found = []
        with os.scandir(self.folder) as files:
            for file in files:
                if file.name.endswith(".o"):
                    with contextlib.suppress(OSError):  # another process removed it
                        state = file.stat()
                        found.append((state.st_mtime, state.st_size, Path(file.path)))
        return sorted(found)

    def _trim(self) -> None:
        """Remove stale temporary files, and the oldest files above the limit."""
        for path in self.folder.glob(f"*{PART_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # its process has finished with it
                if path.stat().st_mtime < time() - STALE_SECONDS:
                    path.unlink()
        entries = self.entries()
        total = sum(size for _, size, _ in entries)
        # Slightly more than necessary is removed, and other processes write too: so the folder is listed only now and
        # then.
        excess = total - self.limit * 7 // 8 if total > self.limit else 0
        for _, size, path in entries[:-1]:
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size
            total -= size
        self._room = (self.limit - total) // 2
