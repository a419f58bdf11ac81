"""KV offload: a folder for what evicted sequences held, until they are used again.

What is evicted is copied at once, under the engine's lock, and written by a thread. Its pages can be reused before the
disk has it, and a sequence that is restored before that comes from the copy. The files are private to this process:
their names are random, their mode is 0600, and a file whose hash differs is not used. A file is removed when its
sequence is restored or dropped; when the folder outgrows its limit, oldest first; and when the engine is closed. Files
of a killed process are removed when the folder is opened again, once they are a day old.
"""

import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, Protocol

from numpy.typing import NDArray

from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.kv.session_io import CacheLayout, SessionData, read_session, write_session
from sporelm.errors import MemoryShortage, RequestError, SporeError
from sporelm.files.part_files import remove_abandoned
from sporelm.ops.paged_attention import PAGE

MIN_TOKENS = 2 * PAGE  # from here on restoring takes a tenth of the time of recomputing, or less, the write included
MAX_UNWRITTEN_BYTES = 1 << 30  # copies that wait for the disk
DEFAULT_MAX_BYTES = 4 << 30
STALE_SECONDS = 86400.0  # a file that was not touched for that long belongs to a dead process
TOUCH_SECONDS = 3600.0  # after which a living process touches its files
FILE_NAMES = re.compile(r"sporelm-[0-9a-f]{32}\.session")


class CacheMemory(Protocol):
    """Copies pages and states out of the cache's memory, and into it."""

    @property
    def kv(self) -> str: ...  # the data type of pages, a value of --kv
    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None: ...
    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]: ...
    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> "FinishExport": ...
    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None: ...


# Waits for a copy of pages and states that has begun, and returns the arrays of both. It may be called again.
FinishExport = Callable[[], tuple[list[NDArray[Any]], list[NDArray[Any]]]]


@dataclass(frozen=True)
class SessionCopy:
    """The content of a sequence while the device copies it to the host."""

    tokens: list[int]
    kv: str
    finish: FinishExport

    def result(self) -> SessionData:
        """Wait for the copy, and return it."""
        layers, states = self.finish()
        return SessionData(self.tokens, layers, {}, states=states, kv=self.kv)


@dataclass(eq=False)
class OffloadEntry:
    """The content of one sequence, or of several forks, when it was evicted."""

    path: Path
    tokens: list[int]
    nbytes: int
    data: SessionCopy | None  # until it is in the file
    holders: set[int]  # ids of sequences
    sha256: str = ""  # of the file's content, once it is written
    prefetch: "Future[SessionData | None] | None" = None  # while the file is read


@dataclass
class OffloadCounts:
    """Counts of what happened to evicted sequences; lost ones are recomputed."""

    offloaded: int = 0
    restored: int = 0
    lost: int = 0


@dataclass
class _OwnFiles:
    """The files that exist, to be removed when the process ends, if not before."""

    process: int = field(default_factory=os.getpid)
    paths: set[Path] = field(default_factory=set)

    def remove(self) -> None:
        if self.process == os.getpid():  # not in a fork, whose parent still needs them
            for path in list(self.paths):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


class OffloadStore:
    """Offloads evicted sequences of one KV cache, and restores them. The engine makes one call at a time."""

    def __init__(
        self, folder: Path, memory: CacheMemory, model: Callable[[], str], max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Create the folder with mode 0700 unless it exists, and remove the files of dead processes from it.

        `model` returns the model's identity; it is called in another thread when something is written or read. Raises
        RequestError for a folder that cannot be written to.
        """
        if max_bytes < 1:
            raise RequestError(f"session_bytes: too small (got {max_bytes}; allowed 1 or more)")
        self.folder = folder
        self.memory = memory
        self.model = model
        self.max_bytes = max_bytes
        self.counts = OffloadCounts()
        self.last_loss: str | None = None  # why the newest lost sequence was lost
        self._entries: dict[int, OffloadEntry] = {}  # by sequence id, oldest first
        self._layout: CacheLayout | None = None
        self._unwritten_bytes = 0
        self._touched_time = time()
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="session-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="session-reader")
        self._files = _OwnFiles()
        weakref.finalize(self, self._files.remove)
        _open_folder(folder)

    def offload(self, sequence: KvSequence) -> None:
        """Begin to copy what a sequence holds, if that is enough, and write it later. Changes the store only.

        The pages may be overwritten by what is launched later: the device copies them first.
        """
        self.forget(sequence)
        num_pages = count_pages(sequence.length)
        if sequence.length < MIN_TOKENS:
            return
        if self._layout is None:
            self._layout = CacheLayout(self.memory.export_pages([]), self.memory.export_states([]), self.memory.kv)
        page_bytes, state_bytes = (
            sum(prod(each.shape[1:]) * each.itemsize for each in arrays)
            for arrays in (self._layout.layers, self._layout.states)
        )
        nbytes = num_pages * page_bytes + state_bytes
        if nbytes > self.max_bytes:
            self._count_loss(f"a conversation of {nbytes} bytes is larger than session_bytes ({self.max_bytes})")
            return
        if self._unwritten_bytes + nbytes > MAX_UNWRITTEN_BYTES:
            self._count_loss(f"{self.folder}: the disk is too slow ({self._unwritten_bytes} bytes wait to be written)")
            return
        try:
            finish = self.memory.start_export(sequence.pages[:num_pages], [sequence.state_slot])
        except (MemoryError, MemoryShortage):
            self._count_loss(f"out of memory while copying a conversation of {nbytes} bytes")
            return
        path = self.folder / f"sporelm-{token_hex(16)}.session"
        tokens = list(sequence.tokens)
        copy = SessionCopy(tokens, self.memory.kv, finish)
        entry = OffloadEntry(path, tokens, nbytes, copy, {sequence.id})
        with self._lock:
            self._entries[sequence.id] = entry
            self._unwritten_bytes += nbytes
        self.counts.offloaded += 1
        self._writer.submit(self._write, entry)

    def tokens_of(self, sequence: KvSequence) -> list[int]:
        """Return the tokens of an offloaded sequence; an empty list for one that is not offloaded."""
        entry = self._entries.get(sequence.id)
        return entry.tokens if entry is not None else []

    def is_ready(self, sequence: KvSequence) -> bool:
        """Return whether a sequence can be restored without waiting for the disk; else begin to read its file."""
        entry = self._entries.get(sequence.id)
        if entry is None or entry.data is not None:
            return True
        prefetch = entry.prefetch  # which the reader removes if the file is damaged
        if prefetch is None:
            prefetch = entry.prefetch = self._reader.submit(self._read, entry)
        return prefetch.done()

    def load(self, sequence: KvSequence) -> SessionData | None:
        """Return what an offloaded sequence held; None if it is lost. May wait for the disk."""
        entry = self._entries.get(sequence.id)
        if entry is None:
            return None
        data = entry.data  # read once: the writer may remove it at any time, the reader the prefetch
        if data is not None:
            return data.result()
        prefetch = entry.prefetch
        return prefetch.result() if prefetch is not None else self._read(entry)

    def restore(self, sequence: KvSequence, first: int, last: int) -> bool:
        """Fill a sequence's pages from `first` to before `last`, and its state; False if they are lost, or too little
        memory is left to copy them. Changes the cache's memory."""
        try:
            data = self.load(sequence)
            if data is None:
                return False
            self.memory.import_pages(sequence.pages[first:last], [layer[first:last] for layer in data.layers])
            self.memory.import_states([sequence.state_slot], data.states)
        except (MemoryError, MemoryShortage):
            self._count_loss(f"out of memory while restoring a conversation of {len(sequence.pages)} pages")
            return False
        self.counts.restored += 1
        return True

    def share(self, source: KvSequence, child: KvSequence) -> None:
        """Let a fork have the offloaded content of its source. Changes the store."""
        with self._lock:
            if entry := self._entries.get(source.id):
                entry.holders.add(child.id)
                self._entries[child.id] = entry

    def forget(self, sequence: KvSequence) -> None:
        """Forget the offloaded content of a sequence, if there is any. Changes the store."""
        with self._lock:
            entry = self._entries.pop(sequence.id, None)
            if entry is None:
                return
            entry.holders.discard(sequence.id)
            if not entry.holders:
                self._writer.submit(self._remove, entry)

    def close(self) -> None:
        """Forget everything and remove its files."""
        with self._lock:
            for entry in self._entries.values():
                entry.holders.clear()
            self._entries.clear()
        self._reader.shutdown()
        self._writer.shutdown()
        self._files.remove()

    def _write(self, entry: OffloadEntry) -> None:
        """Write an entry's file. Runs in the writer's thread."""
        try:
            with self._lock:
                data = entry.data if entry.holders else None
                if data is not None:
                    self._make_room(entry.nbytes)
            if data is not None:
                self._files.paths.add(entry.path)
                entry.sha256 = write_session(entry.path, data.result(), self.model()).sha256
                self._touch_files()
        except (SporeError, OSError, MemoryError) as error:
            self._lose(entry, str(error) or "out of memory")
        finally:
            with self._lock:
                self._unwritten_bytes -= entry.nbytes
            entry.data = None

    def _make_room(self, nbytes: int) -> None:
        """Forget the oldest files until `nbytes` more fit in the folder."""
        written = {entry: None for entry in self._entries.values() if entry.sha256 and entry.prefetch is None}
        total = nbytes + sum(entry.nbytes for entry in written)
        for entry in written:
            if total <= self.max_bytes:
                break
            total -= entry.nbytes
            self._unlink_entry(entry)
            self._count_loss(f"{self.folder}: more than session_bytes ({self.max_bytes})")
            self._remove(entry)

    def _read(self, entry: OffloadEntry) -> SessionData | None:
        """Return the content of a file, mapped; None, and count a loss, if it is not what was written."""
        assert self._layout is not None
        try:
            vocab = max(entry.tokens) + 1
            models = [self.model()]
            data = read_session(entry.path, models, self._layout, len(entry.tokens), vocab, entry.sha256)
            if data.tokens == entry.tokens:
                return data
            reason = f"{entry.path}: it has other tokens than were written"
        except (SporeError, OSError, MemoryError) as error:
            reason = str(error) or "out of memory"
        self._lose(entry, reason)
        return None

    def _lose(self, entry: OffloadEntry, reason: str) -> None:
        with self._lock:
            if entry.holders:
                self._unlink_entry(entry)
                self._count_loss(reason)
        self._remove(entry)

    def _unlink_entry(self, entry: OffloadEntry) -> None:
        for sequence_id in entry.holders:
            self._entries.pop(sequence_id, None)
        entry.holders.clear()

    def _count_loss(self, reason: str) -> None:
        self.last_loss = reason
        self.counts.lost += 1

    def _remove(self, entry: OffloadEntry) -> None:
        """Remove a file. Where the system refuses because it is mapped, it is removed at the end of the process."""
        entry.prefetch = None
        with suppress(OSError):
            entry.path.unlink(missing_ok=True)
            self._files.paths.discard(entry.path)

    def _touch_files(self) -> None:
        """Touch the files now and then, so that no other process takes them for those of a dead one."""
        if time() - self._touched_time > TOUCH_SECONDS:
            self._touched_time = time()
            for path in list(self._files.paths):
                with suppress(OSError):
                    os.utime(path)


def _open_folder(folder: Path) -> None:
    """Create a folder, and remove stale files of ours from it. Raises RequestError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = [path for path in folder.iterdir() if FILE_NAMES.fullmatch(path.name)]
    except OSError as error:
        raise RequestError(f"session_dir {folder}: cannot be used ({error.strerror or error})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(f"session_dir {folder}: cannot be written to. Give a folder that you own.")
    remove_abandoned(folder)
    for path in found:
        with suppress(OSError):
            if path.lstat().st_mtime < time() - STALE_SECONDS:
                path.unlink()
