"""Files that appear whole or not at all: written beside their places, then renamed."""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sporelm.errors import RequestError

_numbers = count()  # threads may write beside the same place


class Job(NamedTuple):
    """One file to write: its place, and what writes its bytes."""

    path: Path
    write: Callable[[BinaryIO], object]


def write_beside(jobs: Sequence[Job]) -> None:
    """Write all files beside their places, force them to the disk, then rename them: all of them, or none.

    Whatever goes wrong, an interrupt too, no part of a new file is left and the old ones are whole. Raises RequestError
    if a file cannot be written.
    """
    parts: list[Path] = []
    current = jobs[0].path if jobs else Path()
    try:
        for job in jobs:
            current = job.path
            beside = current.with_name(f".{current.name}.{os.getpid()}.{next(_numbers)}.part")
            parts.append(beside)  # before it is there: an interrupt may come at any time
            with beside.open("xb") as file:
                job.write(file)
                file.flush()
                os.fsync(file.fileno())
            if current.exists():
                shutil.copymode(current, beside)
        _rename(parts, [job.path for job in jobs])
    except OSError as reason:
        raise RequestError(f"{current} cannot be written: {reason}") from None
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _rename(parts: Sequence[Path], places: Sequence[Path]) -> None:
    """Put every part at its place; if one cannot be put there, take the earlier ones away and the old files back."""
    if len(parts) == 1:
        parts[0].replace(places[0])
        return
    old: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for part, place in zip(parts, places, strict=True):
            if place.exists():
                kept = place.with_name(f".{place.name}.{os.getpid()}.old")
                place.replace(kept)
                old[place] = kept
            part.replace(place)
            placed.append(place)
    except BaseException:
        for place in placed:
            with suppress(OSError):
                place.unlink()
        for place, kept in old.items():
            with suppress(OSError):
                kept.replace(place)
        raise
    for kept in old.values():
        with suppress(OSError):
            kept.unlink()
