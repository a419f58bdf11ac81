"""Removes partial files of sessions and conversations, which a server that was killed has left behind."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sporelm.files.part_files import remove_abandoned
from sporelm.serve.conversations.stored_images import IMAGE_FOLDER


def remove_partial_files(folders: Iterable[Path]) -> int:
    """Remove the partial files of processes that no longer run from these folders, their subfolders and the images
    in those. Return how many were removed."""
    count = 0
    for folder in folders:
        count += remove_abandoned(folder)
        with suppress(OSError):
            count += sum(remove_abandoned(path) for path in folder.iterdir() if path.is_dir())
            count += sum(remove_abandoned(path) for path in folder.glob(f"*/{IMAGE_FOLDER}"))
    return count
