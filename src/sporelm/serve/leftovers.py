"""What a server that was killed in the middle of writing has left: files beside their places, which nobody reads."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import time

STALE = 600.0  # seconds after which nobody is still writing: another server may use the same folder
log = logging.getLogger("sporelm.serve")


def clear_leftovers(folders: Iterable[Path]) -> int:
    """Remove stale parts of sessions and conversations from these folders and those in them; how many there were."""
    count, before = 0, time() - STALE
    for folder in folders:
        for pattern in (".*.part", "*/.*.part"):
            with suppress(OSError):
                for path in folder.glob(pattern):
                    with suppress(OSError):
                        if path.lstat().st_mtime < before:
                            path.unlink()
                            count += 1
    if count:
        log.info("removed %d files that were left half-written", count)
    return count
