"""Ranks of one host that exchange arrays through memory which they share: threads of a process, or processes.

This is the protocol in numpy. The CPU's kernels speak the same protocol, with the same words, so that one rank may run
a collective here while another runs it in native code; `shared_memory_layout.py` has the rules.
"""

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.distributed.parking import wake_sleepers
from sporelm.distributed.shared_memory_layout import (
    ABORT,
    ATTACHED,
    CELL_BYTES,
    CELLS,
    CHUNK_BYTES,
    CHUNKS,
    LINE,
    MAGIC,
    PARKED,
    RECEIVED,
    SENT,
    SEQUENCE,
    SLOT_BYTES,
    WAKE_UPS,
    GroupLayout,
)
from sporelm.errors import BackendError, ContextError, RankLost

EAGER_CHECKS = 200  # checks of a word that only let other threads run in between
PAUSES = (5e-5, 5e-4)  # seconds between later checks: at first, and after as many again
CLOSED_MESSAGE = "group of ranks: used after close. Create or attach another one."


class SharedMemoryGroup:
    """One rank's view of a group. Its methods are called by one thread at a time, `abort` by any thread.

    The ranks call the same collectives in the same order. The group counts them, not the programs that contain them: a
    rank may have several programs, and may run some calls eagerly.
    """

    is_on_device = False

    def __init__(self, memory: mmap.mmap, layout: GroupLayout, rank: int) -> None:
        """Take a rank's place in memory whose header is written; use `create` or `attach`."""
        self.rank, self.size, self.layout = rank, layout.size, layout
        self.memory = np.frombuffer(memory, np.uint8)  # who holds its address must hold this too
        self._words = self.memory[: self.layout.words_end].view(np.int64)
        self._fence = threading.Lock()

    @classmethod
    def create(cls, size: int, *, has_slots: bool = True, stride: int = 1) -> list["SharedMemoryGroup"]:
        """Return the ranks of a new group within this process. Each belongs to one thread and one back-end.

        has_slots, stride  see `GroupLayout`
        """
        layout = GroupLayout(size, has_slots, stride)
        memory = mmap.mmap(-1, layout.nbytes)
        return [cls(memory, layout, rank) for rank in range(size)]

    @staticmethod
    def create_file(path: str | os.PathLike[str], size: int, *, has_slots: bool = True, stride: int = 1) -> None:
        """Create the memory of a new group of processes as a file, which each rank attaches.

        Put it into a private folder, best one that lies in memory (`/dev/shm`). The last rank that attaches removes the
        file, where the system allows that: then nothing remains of it after the last process, however that ends.

        has_slots, stride  see `GroupLayout`
        """
        nbytes = GroupLayout(size, has_slots, stride).nbytes
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with os.fdopen(handle, "r+b") as file:
            file.truncate(nbytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, nbytes)  # a full folder is an error here, not a crash later
            file.write(np.array([MAGIC, size, has_slots, stride], np.int64).tobytes())

    @classmethod
    def attach(cls, path: str | os.PathLike[str], rank: int) -> "SharedMemoryGroup":
        """Return this process's rank of the group in a file. Raise BackendError if file or rank does not fit."""
        with open(path, "r+b") as file:
            length = os.fstat(file.fileno()).st_size
            words = np.frombuffer(file.read(4 * 8).ljust(4 * 8, b"\0"), np.int64).tolist()
            magic, size, has_slots, stride = words
            layout = GroupLayout(size, bool(has_slots), stride)
            if magic != MAGIC or size < 1 or not 0 <= stride <= size or length != layout.nbytes:
                raise BackendError(f"{path}: not the memory of a group of ranks. Use the path given to create_file.")
            if not 0 <= rank < size:
                raise BackendError(f"{path}: rank is not in the group (got {rank}; allowed 0 to {size - 1}).")
            memory = mmap.mmap(file.fileno(), length)
        group = cls(memory, layout, rank)
        group._set(group.layout.rank(rank) + ATTACHED, 1)
        if all(group._get(group.layout.rank(other) + ATTACHED) for other in range(size)):
            with contextlib.suppress(OSError):  # Windows keeps a mapped file; its launcher removes the folder
                Path(path).unlink()
        return group

    # ---- words

    def _get(self, offset: int) -> int:
        return int(self._words[offset // 8])

    def _set(self, offset: int, value: int) -> None:
        """Set a word after everything that this thread wrote before."""
        self._order()
        self._words[offset // 8] = value
        self._order()

    def _order(self) -> None:
        """Keep the CPU from moving loads and stores across this point.

        Taking a lock after releasing one is a full barrier on every CPU; numpy has no other.
        """
        with self._fence:
            pass
        with self._fence:
            pass

    def _flags(self, rank: int, count: int) -> np.ndarray:
        start = self.layout.flags(rank) // 8
        return self._words[start : start + count * LINE // 8 : LINE // 8]

    def _wake_waiting_ranks(self) -> None:
        """Wake the ranks that sleep until this rank writes."""
        place = self.layout.rank(self.rank)
        if self._get(place + PARKED):
            self._words[(place + WAKE_UPS) // 8] += 1
            wake_sleepers(self.memory.ctypes.data + place + WAKE_UPS)

    def _wait(self, words: np.ndarray, min_value: int) -> None:
        """Wait until all of these words are at least this number. Raise RankLost once the group is aborted."""
        checks = 0
        while (words < min_value).any():
            self.check()
            checks += 1
            time.sleep(0 if checks < EAGER_CHECKS else PAUSES[checks >= 2 * EAGER_CHECKS])
        self._order()

    def _word(self, offset: int) -> np.ndarray:
        return self._words[offset // 8 : offset // 8 + 1]

    # ---- state of the group

    def abort(self) -> None:
        """Make all waits of all ranks end with RankLost, now and later. The group cannot be used again."""
        words = self._words
        if words.size:
            words[ABORT // 8] = 1

    def check(self) -> None:
        """Raise RankLost if the group was aborted, ContextError if it is closed here."""
        words = self._words
        if not words.size:
            raise ContextError(CLOSED_MESSAGE)
        if words[ABORT // 8]:
            raise RankLost(f"group of {self.size} ranks: aborted, seen by rank {self.rank}. Start the ranks again.")

    def close(self) -> None:
        """Leave the group. Does not wait for the others; the memory is freed with its last user."""
        self.memory, self._words = np.zeros(0, np.uint8), np.zeros(0, np.int64)

    # ---- collectives

    def all_gather(self, array: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return the arrays of all ranks, in rank order. `shapes` are theirs; all have one dtype.

        Raises RankLost once the group is aborted.
        """
        self.check()
        if len(shapes) != self.size or tuple(shapes[self.rank]) != array.shape:
            raise BackendError(
                f"all_gather: shapes do not fit (got {list(shapes)}; rank {self.rank} has {array.shape})."
            )
        own = _bytes_of(array)
        parts = [np.empty(prod(shape) * array.itemsize, np.uint8) for shape in shapes]
        longest = max(part.size for part in parts)
        flags = min(CHUNKS, -(-longest // CHUNK_BYTES))
        for start in range(0, longest, SLOT_BYTES):
            piece = slice(start, start + SLOT_BYTES)
            self._exchange(own[piece], [part[piece] for part in parts], flags)
        return [part.view(array.dtype).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _exchange(self, own: np.ndarray, parts: Sequence[np.ndarray], flags: int) -> None:
        """Give the others one piece, and fill `parts` with the pieces of all."""
        place = self.layout.rank(self.rank) + SEQUENCE
        number = self._get(place) + 1
        self._slot(self.rank, number)[: own.size] = own
        self._order()
        self._flags(self.rank, flags)[:] = number
        self._order()
        self._wake_waiting_ranks()
        for rank, part in enumerate(parts):
            self._wait(self._flags(rank, flags), number)
            part[:] = self._slot(rank, number)[: part.size]
        self._set(place, number)

    def _slot(self, rank: int, number: int) -> np.ndarray:
        start = self.layout.slots(rank) + number % 2 * SLOT_BYTES
        return self.memory[start : start + SLOT_BYTES]

    # ---- mailboxes

    def send(self, array: np.ndarray, target: int) -> None:
        """Give an array to another rank. Waits while its mailbox is full: a few hundred kilobytes."""
        self.check()
        own, words = _bytes_of(array), self.layout.pair(self.rank, target)
        for start in range(0, own.size, CELL_BYTES):
            number, piece = self._get(words + SENT), own[start : start + CELL_BYTES]
            self._wait(self._word(words + RECEIVED), number + 1 - CELLS)
            self._cell(self.rank, target, number)[: piece.size] = piece
            self._set(words + SENT, number + 1)
            self._wake_waiting_ranks()

    def receive(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int) -> np.ndarray:
        """Return the next array from another rank. Raises RankLost once the group is aborted."""
        self.check()
        result, words = np.empty(prod(shape) * dtype.itemsize, np.uint8), self.layout.pair(source, self.rank)
        for start in range(0, result.size, CELL_BYTES):
            number, piece = self._get(words + RECEIVED), result[start : start + CELL_BYTES]
            self._wait(self._word(words + SENT), number + 1)
            piece[:] = self._cell(source, self.rank, number)[: piece.size]
            self._set(words + RECEIVED, number + 1)
            self._wake_waiting_ranks()
        return result.view(dtype).reshape(shape)

    def _cell(self, source: int, target: int, number: int) -> np.ndarray:
        start = self.layout.ring(source, target) + number % CELLS * CELL_BYTES
        return self.memory[start : start + CELL_BYTES]


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array in row-major order, without padding."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
