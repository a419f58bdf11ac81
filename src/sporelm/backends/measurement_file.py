"""Files of the user's with measurements of this machine: {"sporelm tiles": [entry, ...]}.

An entry is an object that two of its fields identify, such as a device and its driver. The file is data: an invalid one
is an error of the reader, and replaced by the writer. Processes that write at the same time keep one another's entries.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from sporelm.backends.file_cache import replace_atomically
from sporelm.backends.file_lock import is_at, take

MAX_FILE_BYTES = 1 << 20  # bytes; a file of a hundred devices is smaller
LOCK_SUFFIX = ".lock"
WAIT_SECONDS = 10.0  # for another process that writes the file, which takes milliseconds
POLL_SECONDS = 0.01

Entry = dict[str, Any]


@dataclass(frozen=True)
class MeasurementFile:
    """A kind of such files.

    list_key     the key of the list of entries
    names        the two fields that identify an entry
    check_entry  returns an entry that is valid; raises ValueError
    """

    list_key: str
    names: tuple[str, str]
    check_entry: Callable[[Any], Entry]

    def read(self, path: Path) -> dict[tuple[str, str], Entry]:
        """Return entries by their two fields; none without a file. Raise OSError, ValueError, RecursionError."""
        if not path.exists():
            return {}
        if not path.is_file():
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        try:
            values = json.loads(content.decode("utf-8"))
        except ValueError:
            raise ValueError("it is not valid JSON") from None
        if not isinstance(values, dict) or not isinstance(values.get(self.list_key), list):
            raise ValueError(f"it has no list {self.list_key!r}")
        return {self._key(entry): entry for entry in map(self.check_entry, values[self.list_key])}

    def save(self, path: Path, entry: Entry) -> None:
        """Add an entry to the file, or replace the one with its two fields. Keep the others. Raise OSError."""
        with lock_file(path):
            entries: dict[tuple[str, str], Entry] = {}
            with contextlib.suppress(OSError, ValueError, RecursionError):  # a damaged file is replaced
                entries = self.read(path)
            entries[self._key(entry)] = entry
            with replace_atomically(path) as part:
                part.write_text(json.dumps({self.list_key: list(entries.values())}, indent=1) + "\n", "utf-8")

    def _key(self, entry: Entry) -> tuple[str, str]:
        first, second = self.names
        return entry[first], entry[second]


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Keep other processes out of such blocks for the same path. Raise OSError after 10 seconds of waiting.

    File systems without locks are not locked. The lock is a file beside the path, which is gone afterwards.
    """
    lock = path.with_name(path.name + LOCK_SUFFIX)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = monotonic() + WAIT_SECONDS
    while True:
        with lock.open("ab") as file:
            if take(file) and is_at(file, lock):
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):  # some systems remove no file that is open
                        lock.unlink()
                return
        if monotonic() > deadline:
            raise TimeoutError(f"another process has held the lock {lock.name} for {WAIT_SECONDS:g} s")
        sleep(POLL_SECONDS)
