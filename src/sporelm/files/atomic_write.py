"""Atomic writes: files are written under temporary names and then renamed."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sporelm.errors import RequestError
from sporelm.files.part_files import PartFiles


class Job(NamedTuple):
    """One file to write: its place, and what writes its bytes. A `private` one only its owner can read."""

    path: Path
    write: Callable[[BinaryIO], object]
    private: bool = False


def write_beside(jobs: Sequence[Job], *, replace: bool = True) -> None:
    """Write all files beside their places, force them to the disk, then rename them: all of them, or none.

    Whatever goes wrong, an interrupt too, no part of a new file is left and the old ones are whole. If the process is
    killed, its parts are removed when the next one writes to that folder. Of a link that is replaced, the file it
    points to is: the link stays. Without `replace` a file that is there, even one that came meanwhile, stays too.
    Raises RequestError if a file cannot be written.
    """
    if replace:
        jobs = [job._replace(path=Path(os.path.realpath(job.path))) if job.path.is_symlink() else job for job in jobs]
    unfinished = PartFiles()
    try:
        _write_jobs(jobs, unfinished, replace)
    finally:
        try:
            unfinished.close()
        finally:
            unfinished.close()  # again, in case an interrupt cut the first call short


def _write_jobs(jobs: Sequence[Job], unfinished: PartFiles, replace: bool) -> None:
    """Write the parts and put them at their places. Raises RequestError."""
    current = jobs[0].path if jobs else Path()
    try:
        parts: list[Path] = []
        for job in jobs:
            current = job.path
            part = unfinished.path_for(current)
            with open(part, "xb", opener=_open_private if job.private else None) as file:
                job.write(file)
                file.flush()
                os.fsync(file.fileno())
            if replace and not job.private and current.exists():
                shutil.copymode(current, part)
            parts.append(part)
        places = [job.path for job in jobs]
        if replace:
            _rename(unfinished, parts, places)
        else:
            _place_new(parts, places)
    except FileExistsError as reason:
        taken = reason.filename2 or reason.filename or current
        raise RequestError(f"{taken} is there already, since a moment ago; nothing was overwritten") from None
    except OSError as reason:
        why = reason.strerror or reason  # without the name of the unfinished file
        raise RequestError(f"{current} cannot be written: {why}") from None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _place_new(parts: Sequence[Path], places: Sequence[Path]) -> None:
    """Put every part at its place, where nothing may be; if one cannot be put there, take the earlier ones away.
    Raises FileExistsError for a place that is taken."""
    moved: list[Path] = []  # places filled by renaming, on file systems without hard links
    try:
        for part, place in zip(parts, places, strict=True):
            try:
                os.link(part, place)  # of several writers at once, one succeeds
            except FileExistsError:
                raise
            except (OSError, AttributeError, NotImplementedError):  # a disk or system without links
                moved.append(place)  # recorded first: an interrupt must not leave an empty file
                try:
                    os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                except OSError:
                    moved.pop()
                    raise
                part.replace(place)
    except BaseException:
        for part, place in zip(parts, places, strict=True):
            with suppress(OSError):
                if place in moved or (part.stat().st_nlink > 1 and part.samefile(place)):
                    place.unlink()
        raise


def _rename(unfinished: PartFiles, parts: Sequence[Path], places: Sequence[Path]) -> None:
    """Put every part at its place; if one cannot be put there, take the earlier ones away and the old files back."""
    if len(parts) == 1:
        parts[0].replace(places[0])
        return
    old: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for part, place in zip(parts, places, strict=True):
            if place.exists():
                kept = old[place] = unfinished.path_aside(place)  # recorded first: an interrupt must not lose it
                place.replace(kept)
            placed.append(place)
            part.replace(place)
    except BaseException:
        for place, kept in old.items():
            with suppress(OSError):  # one that stays aside is moved back by the next writer
                kept.replace(place)
        _remove(place for place in placed if place not in old or old[place].exists())
        raise
    try:
        _remove(old.values())
    finally:
        _remove(old.values())  # again, in case an interrupt cut the first call short


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()
