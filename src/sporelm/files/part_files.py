"""Partial files for atomic writes, and the removal of partial files of killed processes.

A file `NAME` is written as `.NAME.PID-RANDOM.N.part` in the same folder, while the process locks
`.sporelm-PID-RANDOM.lock` there. The system releases that lock however the process ends. A process id alone would not
do: ids are reused, and containers that share a disk do not share them. So a lock file that can be locked belongs
to a writer that is gone: its parts are removed, and files that it had moved aside go back to their places. Where the
file system does not support locks nothing is removed.
"""

import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import BinaryIO

from sporelm.backends.file_lock import is_at, take, try_lock

LOCK_NAME = re.compile(r"\.sporelm-([0-9]+-[0-9a-f]{8})\.lock")
log = logging.getLogger("sporelm")
_searched: set[Path] = set()  # folders in which this process has looked for abandoned files


class PartFiles:
    """The unfinished files of one writer; files that were not renamed are removed at its end.

    Other threads of the process may have their own for the same places.
    """

    def __init__(self) -> None:
        self._locks: dict[Path, _FolderLock] = {}
        self._parts: list[Path] = []
        self._aside: list[Path] = []

    def __enter__(self) -> "PartFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def path_for(self, place: Path) -> Path:
        """Return where to write the file that is for `place`; nothing is there yet. Raises OSError.

        The first time that a folder is written to, what dead processes left in it is removed.
        """
        token = self._token(place.parent)
        part = place.with_name(f".{place.name}.{token}.{len(self._parts)}.part")
        self._parts.append(part)
        return part

    def path_aside(self, place: Path) -> Path:
        """Return where to move the file that is at `place` until the parts are in their places. Raises OSError.

        Should the process be killed before that, the next one moves it back.
        """
        aside = place.with_name(f".{place.name}.{self._token(place.parent)}.old")
        self._aside.append(aside)
        return aside

    def close(self) -> None:
        """Remove the parts that are still there. Closing again does nothing.

        Where a file stays aside, because it could not be moved back, the lock file stays: the next writer does it.
        """
        for part in self._parts:
            with suppress(OSError, ValueError):  # ValueError: a name that cannot exist, with a zero in it
                part.unlink(missing_ok=True)
        self._parts.clear()
        for folder, lock in self._locks.items():
            lock.release(keeps_file=any(path.parent == folder and path.exists() for path in self._aside))
        self._locks.clear()

    def _token(self, folder: Path) -> str:
        """Return the token of this writer in a folder, whose lock it holds from now on."""
        if folder not in self._locks:
            _search_once(folder)
            self._locks[folder] = _FolderLock(folder)  # recorded first, so that no interrupt leaves the file
        lock = self._locks[folder]
        lock.acquire()
        return lock.token


class _FolderLock:
    """The lock file of one writer in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.token = ""
        self._path: Path | None = None  # of the file that we made or are about to make
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        """Create and lock the file, unless that is done. Raises OSError."""
        while self._file is None:
            self.token = f"{os.getpid()}-{token_hex(4)}"
            self._path = self._folder / f".sporelm-{self.token}.lock"
            try:
                file = self._path.open("xb")
            except FileExistsError:
                self._path = None
                continue
            if take(file) and is_at(file, self._path):
                self._file = file
            else:  # another process removed it as abandoned before we locked it
                file.close()
                self.release()

    def release(self, *, keeps_file: bool = False) -> None:
        """Unlock the file, and remove it unless it is kept."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path is not None and not keeps_file:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._path = None


def remove_abandoned(folder: Path) -> int:
    """Remove the unfinished files in a folder whose writers are gone; returns how many lay there.

    Files that a writer had moved aside, without coming to the end of its renaming, go back to their places.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return 0
    count = 0
    for name in names:
        if found := LOCK_NAME.fullmatch(name):
            with suppress(OSError):
                with (folder / name).open("r+b") as lock:
                    if not _is_own(lock) or try_lock(lock) is not True or not is_at(lock, folder / name):
                        continue
                    count += _roll_back(folder, found[1])
                (folder / name).unlink(missing_ok=True)
    if count:
        log.info("removed %d unfinished files of processes that are gone from %s", count, folder)
    return count


def _is_own(lock: BinaryIO) -> bool:
    """Whether a lock file belongs to our user. In a folder that all may write to, such as /tmp, another user's would
    have us move that user's files over ours."""
    return sys.platform == "win32" or os.fstat(lock.fileno()).st_uid == os.geteuid()


def _roll_back(folder: Path, token: str) -> int:
    """Undo what the writer of a token began; returns how many files of it lay there. Raises OSError."""
    names = os.listdir(folder)  # now that the writer is known to be gone, and adds none
    part = re.compile(rf"\..+\.{token}\.[0-9]+\.part")
    old = re.compile(rf"\.(.+)\.{token}\.old")
    parts = [folder / name for name in names if part.fullmatch(name)]
    aside = {folder / name: folder / found[1] for name in names if (found := old.fullmatch(name))}
    for kept, place in aside.items():
        if parts or not place.exists():
            kept.replace(place)
        else:
            kept.unlink()  # every part had been renamed: the new files are complete
    for path in parts:
        path.unlink(missing_ok=True)
    return len(parts) + len(aside)


def _search_once(folder: Path) -> None:
    if folder not in _searched:  # no lock needed: searching twice is harmless
        _searched.add(folder)
        remove_abandoned(folder)
