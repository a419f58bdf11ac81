"""A folder in which sequences sleep that had to give way, until they are used again.

What gives way is copied at once, under the engine's turn, and written by a thread of its own: its pages can be used
again before the disk has it, and a sequence that wakes before that wakes from the copy. The files are ours alone: their
names are random, their mode is 0600, and one that does not hold what was written is not believed. They go when their
sequence wakes or is dropped, when the folder outgrows its limit, the longest asleep first, and when the engine is
closed. What a killed process left goes, when another one opens the folder, once it was not touched for a day.
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

from sporelm.engine.kv.asleep import Asleep, Like, read_asleep, write_asleep
from sporelm.engine.kv.pages import pages_for
from sporelm.engine.kv.sequence import KvSequence
from sporelm.errors import RequestError, SporeError
from sporelm.ops.attention import PAGE
from sporelm.weights.part_files import remove_abandoned

LEAST_TOKENS = 2 * PAGE  # from here on waking takes a tenth of computing anew, or less, the writing included
MOST_UNWRITTEN = 1 << 30  # bytes of copies that wait for the disk
DEFAULT_BYTES = 4 << 30
STALE = 86400.0  # seconds after which a file that nobody touched was left by a process that is gone
REFRESH = 3600.0  # seconds after which a living process touches its files
NAMES = re.compile(r"sporelm-[0-9a-f]{32}\.session")


class PageAccess(Protocol):
    """Whoever can copy pages and states out of the caches, and into them."""

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None: ...
    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None: ...


@dataclass(eq=False)
class _Bed:
    """What sequences, forks of each other, held when they gave way."""

    path: Path
    tokens: list[int]
    nbytes: int
    held: Asleep | None  # until it is in the file
    holders: set[int]  # numbers of sequences
    sha256: str = ""  # of what is in the file
    coming: "Future[Asleep | None] | None" = None  # the file is being read


@dataclass
class Counts:
    """What became of sequences that gave way; `lost` ones are computed anew."""

    slept: int = 0
    woken: int = 0
    lost: int = 0


@dataclass
class _Paths:
    """The files that are there, to be removed at the end of the process, if not before."""

    process: int = field(default_factory=os.getpid)
    paths: set[Path] = field(default_factory=set)

    def remove(self) -> None:
        if self.process == os.getpid():  # not in a fork, whose parent still needs them
            for path in list(self.paths):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


class SessionFolder:
    """Puts sequences to sleep for a store (its `Dormitory`). Calls come from the engine, one at a time."""

    def __init__(
        self, folder: Path, pages: PageAccess, model: Callable[[], str], most_bytes: int = DEFAULT_BYTES
    ) -> None:
        """Make the folder, of mode 0700, unless it is there; remove what the dead have left in it.

        `model` says what the model is known by; it is called when something is written or read, in another thread.
        Raises RequestError for a folder that cannot be written.
        """
        if most_bytes < 1:
            raise RequestError(f"session_bytes is {most_bytes}: it must be at least 1")
        self.folder, self.pages, self.model, self.most_bytes = folder, pages, model, most_bytes
        self.counts = Counts()
        self.trouble: str | None = None  # why the last one that was lost was lost
        self._beds: dict[int, _Bed] = {}  # by number of sequence, the longest asleep first
        self._like: Like | None = None
        self._unwritten = 0  # bytes
        self._refreshed = time()
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="session-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="session-reader")
        self._files = _Paths()
        weakref.finalize(self, self._files.remove)
        _open_folder(folder)

    def put(self, sequence: KvSequence) -> None:
        """Copy what a sequence holds, if there is enough of it, and have it written. Changes the folder only."""
        self.leave(sequence)
        count = pages_for(sequence.length)
        if sequence.length < LEAST_TOKENS:
            return
        if self._like is None:
            self._like = Like(self.pages.export_pages([]), self.pages.export_states([]))
        page, state = (sum(prod(each.shape[1:]) * each.itemsize for each in arrays) for arrays in self._like)
        nbytes = count * page + state
        if nbytes > self.most_bytes:
            self._lost(f"{nbytes} bytes of a conversation are more than session_bytes, {self.most_bytes}")
            return
        if self._unwritten + nbytes > MOST_UNWRITTEN:
            self._lost(f"the disk of {self.folder} is too slow: {self._unwritten} bytes wait to be written")
            return
        try:
            layers = self.pages.export_pages(sequence.pages[:count])
            states = self.pages.export_states([sequence.state])
        except MemoryError:
            self._lost(f"no memory is left to copy {nbytes} bytes of a conversation")
            return
        path = self.folder / f"sporelm-{token_hex(16)}.session"
        tokens = list(sequence.tokens)
        bed = _Bed(path, tokens, nbytes, Asleep(tokens, layers, {}, states=states), {sequence.number})
        with self._lock:
            self._beds[sequence.number] = bed
            self._unwritten += nbytes
        self.counts.slept += 1
        self._writer.submit(self._write, bed)

    def sleeping(self, sequence: KvSequence) -> list[int]:
        """The tokens with which a sequence sleeps; none where it does not."""
        bed = self._beds.get(sequence.number)
        return bed.tokens if bed is not None else []

    def ready(self, sequence: KvSequence) -> bool:
        """Whether a sequence that sleeps could be woken without waiting for the disk; it soon will be."""
        bed = self._beds.get(sequence.number)
        if bed is None or bed.held is not None:
            return True
        coming = bed.coming  # which the reader takes away if the file is damaged
        if coming is None:
            coming = bed.coming = self._reader.submit(self._read, bed)
        return coming.done()

    def held(self, sequence: KvSequence) -> Asleep | None:
        """What a sequence that sleeps held; None if it is lost. May wait for the disk."""
        bed = self._beds.get(sequence.number)
        if bed is None:
            return None
        kept = bed.held  # which the writer may take away at any time, and the reader the next
        if kept is not None:
            return kept
        coming = bed.coming
        return coming.result() if coming is not None else self._read(bed)

    def bring(self, sequence: KvSequence, first: int, last: int) -> bool:
        """Fill a sequence's pages, from `first` to before `last`, and its state with what they held; False if that is
        lost. Changes the caches."""
        held = self.held(sequence)
        if held is None:
            return False
        self.pages.import_pages(sequence.pages[first:last], [layer[first:last] for layer in held.layers])
        self.pages.import_states([sequence.state], held.states)
        self.counts.woken += 1
        return True

    def share(self, source: KvSequence, twin: KvSequence) -> None:
        """A fork of a sequence that may sleep sleeps too. Changes the folder."""
        with self._lock:
            if bed := self._beds.get(source.number):
                bed.holders.add(twin.number)
                self._beds[twin.number] = bed

    def leave(self, sequence: KvSequence) -> None:
        """A sequence sleeps no longer. Changes the folder; does nothing if it did not."""
        with self._lock:
            bed = self._beds.pop(sequence.number, None)
            if bed is None:
                return
            bed.holders.discard(sequence.number)
            if not bed.holders:
                self._writer.submit(self._remove, bed)

    def close(self) -> None:
        """Forget all that sleeps, and remove its files."""
        with self._lock:
            for bed in self._beds.values():
                bed.holders.clear()
            self._beds.clear()
        self._reader.shutdown()
        self._writer.shutdown()
        self._files.remove()

    def _write(self, bed: _Bed) -> None:
        """In the writer's thread."""
        try:
            with self._lock:
                held = bed.held if bed.holders else None
                if held is not None:
                    self._make_room(bed.nbytes)
            if held is not None:
                self._files.paths.add(bed.path)
                bed.sha256 = write_asleep(bed.path, held, self.model()).sha256
                self._refresh()
        except (SporeError, OSError, MemoryError) as reason:
            self._lose(bed, str(reason) or "no memory is left")
        finally:
            with self._lock:
                self._unwritten -= bed.nbytes
            bed.held = None

    def _make_room(self, nbytes: int) -> None:
        """Forget those that sleep longest until so many bytes more fit in the folder."""
        written = {bed: None for bed in self._beds.values() if bed.sha256 and bed.coming is None}
        total = nbytes + sum(bed.nbytes for bed in written)
        for bed in written:
            if total <= self.most_bytes:
                break
            total -= bed.nbytes
            self._forget(bed)
            self._lost(f"{self.folder} holds more than session_bytes, {self.most_bytes}")
            self._remove(bed)

    def _read(self, bed: _Bed) -> Asleep | None:
        """What is in a file, seen where it lies; None, and it is lost, if it is not what was written."""
        assert self._like is not None
        try:
            most = max(bed.tokens) + 1
            asleep = read_asleep(bed.path, self.model(), self._like, len(bed.tokens), most, bed.sha256)
            if asleep.tokens == bed.tokens:
                return asleep
            reason = f"{bed.path} holds other tokens than were written"
        except (SporeError, OSError, MemoryError) as error:
            reason = str(error) or "no memory is left"
        self._lose(bed, reason)
        return None

    def _lose(self, bed: _Bed, reason: str) -> None:
        with self._lock:
            if bed.holders:
                self._forget(bed)
                self._lost(reason)
        self._remove(bed)

    def _forget(self, bed: _Bed) -> None:
        for number in bed.holders:
            self._beds.pop(number, None)
        bed.holders.clear()

    def _lost(self, reason: str) -> None:
        self.trouble = reason
        self.counts.lost += 1

    def _remove(self, bed: _Bed) -> None:
        """Remove a file; where the system does not let us while it is mapped, that is done at the end."""
        bed.coming = None
        with suppress(OSError):
            bed.path.unlink(missing_ok=True)
            self._files.paths.discard(bed.path)

    def _refresh(self) -> None:
        """Touch our files now and then: they are no leftovers."""
        if time() - self._refreshed > REFRESH:
            self._refreshed = time()
            for path in list(self._files.paths):
                with suppress(OSError):
                    os.utime(path)


def _open_folder(folder: Path) -> None:
    """Make a folder, and remove stale files of ours from it. Raises RequestError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = [path for path in folder.iterdir() if NAMES.fullmatch(path.name)]
    except OSError as reason:
        raise RequestError(f"session_dir {folder} cannot be used: {reason.strerror or reason}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(f"session_dir {folder} cannot be written to: give a folder that you own")
    remove_abandoned(folder)
    for path in found:
        with suppress(OSError):
            if path.lstat().st_mtime < time() - STALE:
                path.unlink()
