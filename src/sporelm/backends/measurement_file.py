"""Per-user JSON files with measurements of this machine: {"sporelm tiles": [entry, ...]}.

Two fields of an entry identify it, such as device and driver. An invalid file raises an error when it is read, and is
renamed to end in BACKUP_SUFFIX when a new one is saved. Processes that write at the same time do not lose each other's
entries.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from sporelm.backends.file_cache import replace_atomically
from sporelm.backends.file_lock import is_at, take

MAX_FILE_BYTES = 1 << 20  # bytes; a file of a hundred devices is smaller
LOCK_SUFFIX = ".lock"
BACKUP_SUFFIX = ".bak"
WAIT_SECONDS = 10.0  # for another process that writes the file, which takes milliseconds
POLL_SECONDS = 0.01

Entry = dict[str, Any]


@dataclass(frozen=True)
class MeasurementFile:
    """The format of one measurement file.

    list_key     the key of the list of entries
    key_fields   the two fields that identify an entry
    check_entry  returns an entry that is valid; raises ValueError
    """

    list_key: str
    key_fields: tuple[str, str]
    check_entry: Callable[[Any], Entry]

    def read(self, path: Path) -> dict[tuple[str, str], Entry]:
        """Return the entries by their key fields, none without a file. Raise OSError, ValueError, RecursionError."""
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
        """Add an entry, replacing one with the same key fields, and keep the others. Raise OSError.

        A file with other content is renamed to end in BACKUP_SUFFIX, links are followed.
        """
        path = _check_regular_file(path.resolve())
        with exclusive_access(path):
            entries: dict[tuple[str, str], Entry] = {}
            is_foreign = False
            try:
                entries = self.read(path)
            except (ValueError, RecursionError):
                is_foreign = True
            entries[self._key(entry)] = entry
            with replace_atomically(path) as part:
                part.write_text(json.dumps({self.list_key: list(entries.values())}, indent=1) + "\n", "utf-8")
                if path.exists():
                    part.chmod(path.stat().st_mode & 0o777)
                if is_foreign:
                    path.replace(path.with_name(path.name + BACKUP_SUFFIX))

    def check_writable(self, path: Path) -> None:
        """Raise OSError if `save` could not write a file: known before measuring for minutes."""
        with replace_atomically(_check_regular_file(path.resolve()), keep=False):
            pass

    def _key(self, entry: Entry) -> tuple[str, str]:
        first, second = self.key_fields
        return entry[first], entry[second]


def _check_regular_file(path: Path) -> Path:
    """Return a path that has a regular file or none. Raise OSError."""
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "it is not a regular file")
    return path


@contextlib.contextmanager
def exclusive_access(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for a path during the block. Raise TimeoutError after 10 seconds of waiting.

    The lock is a file beside the path, which is removed afterwards. On file systems without locks the block runs
    unprotected.
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
                    if sys.platform != "win32":  # where an open file cannot be removed
                        lock.unlink(missing_ok=True)
                break
        if monotonic() > deadline:
            raise TimeoutError(f"{lock.name}: another process has locked it for more than {WAIT_SECONDS:g} s")
        sleep(POLL_SECONDS)
    if sys.platform == "win32":
        with contextlib.suppress(OSError):  # another process has opened it
            lock.unlink()
