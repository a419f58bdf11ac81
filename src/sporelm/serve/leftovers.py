"""Unfinished files of sessions and conversations, left by a server that was killed while it wrote them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sporelm.weights.part_files import remove_abandoned


def clear_leftovers(folders: Iterable[Path]) -> int:
    """Remove the unfinished files whose process is gone from these folders and those in them; returns how many."""
    count = 0
    for folder in folders:
        count += remove_abandoned(folder)
        with suppress(OSError):
            count += sum(remove_abandoned(path) for path in folder.iterdir() if path.is_dir())
    return count
