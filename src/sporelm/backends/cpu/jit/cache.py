"""Compiled kernels on disk, for the next start.

The folder holds native code, so it is ours alone: mode 0700 and owned by the user, or it is not used. Files are written
beside and renamed, so that many processes may share it; each begins with the hash of its content, so that a damaged
one is compiled again. When it outgrows its limit the files used longest ago go, but never the newest; files that a
killed process left half written go when they are an hour old.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from functools import cache
from pathlib import Path
from time import time

from sporelm import settings

DIGEST = 32  # bytes of sha256 before the object code
PART = ".part"  # ends the name of a file that is being written
STALE = 3600  # seconds after which nobody is still writing it
TABLES = ("grids.npz", "grids.py", "levels.py", "nf4.py")  # of `quant`, which kernels take levels and code books from


@cache
def source_digest() -> str:
    """Hash of every file that kernels are traced from: this back-end's sources, and the tables of number formats."""
    package = Path(__file__).parents[3]
    own = (package / "backends" / "cpu").rglob("*.py")
    digest = hashlib.sha256()
    for path in sorted((*own, *(package / "quant" / name for name in TABLES))):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class ObjectCache:
    """Object code by key, in one folder."""

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = folder or settings.KERNEL_CACHE.path
        self.limit = limit if limit is not None else settings.KERNEL_CACHE_BYTES.integer or 0
        self.refusal = self._refusal()
        self._room = 0  # bytes that may be written until the folder is looked through again, as costs time

    def _refusal(self) -> str | None:
        """Why the folder is not used, or None."""
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
        """The object code under `key`, or None."""
        if self.refusal:
            return None
        try:
            content = self.path(key).read_bytes()
            os.utime(self.path(key))
        except OSError:
            return None
        code = content[DIGEST:]
        return code if hashlib.sha256(code).digest() == content[:DIGEST] else None

    def put(self, key: str, code: bytes) -> None:
        """Keep object code. A folder that cannot be written only costs the next start its time."""
        if self.refusal:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=PART)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                Path(name).replace(self.path(key))
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
            self._room -= DIGEST + len(code)
            if self._room < 0:
                self._trim()
        except OSError as error:
            self.refusal = f"{self.folder}: {error.strerror or error}"

    def entries(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of each file, oldest first."""
        found = []
        with os.scandir(self.folder) as files:
            for file in files:
                if file.name.endswith(".o"):
                    with contextlib.suppress(OSError):  # another process removed it
                        state = file.stat()
                        found.append((state.st_mtime, state.st_size, Path(file.path)))
        return sorted(found)

    def _trim(self) -> None:
        """Remove what was left half-written, and the oldest files if there is more than the limit."""
        for path in self.folder.glob(f"*{PART}"):
            with contextlib.suppress(FileNotFoundError):  # its process is done with it
                if path.stat().st_mtime < time() - STALE:
                    path.unlink()
        entries = self.entries()
        total = sum(size for _, size, _ in entries)
        # A little more goes than must, and others write too: so the folder is looked through now and then only.
        excess = total - self.limit * 7 // 8 if total > self.limit else 0
        for _, size, path in entries[:-1]:
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size
            total -= size
        self._room = (self.limit - total) // 2
