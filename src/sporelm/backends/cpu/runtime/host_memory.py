"""Memory for weights, pages and values: zeroed, aligned, in large pages where the system gives them."""

import contextlib
import mmap
import threading

import numpy as np

ALIGNMENT = 64
HUGE = 2 << 20
# Python's default is shared memory, which never gets large pages; Windows knows no such flags
PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class Region:
    """Anonymous memory. Untouched parts cost nothing; it is freed with the last array on it.

    huge: use large pages where the system has them, for memory that is used as a whole: one touched byte then costs two
    megabytes.
    """

    def __init__(self, nbytes: int, huge: bool = False) -> None:
        alignment = HUGE if huge and nbytes >= HUGE else ALIGNMENT
        self._map = mmap.mmap(-1, max(nbytes, 1) + alignment, **PRIVATE)
        whole = np.frombuffer(self._map, np.uint8)
        start = -whole.ctypes.data % alignment
        if alignment == HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages: slower, not wrong
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.array = whole[start : start + nbytes]
        self.address = int(self.array.ctypes.data)


class Heap:
    """Allocates aligned pieces of large regions; a full region is freed when its last piece is gone."""

    def __init__(self, region_bytes: int = 64 << 20, huge: bool = True) -> None:
        self.region_bytes, self.huge = region_bytes, huge
        self._region: Region | None = None  # the region from which pieces are allocated
        self._free = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> np.ndarray:
        """Return a zeroed uint8 array, 64-byte aligned."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if self._region is None or self._free + size > self._region.array.size:
                self._region = Region(max(size, self.region_bytes), self.huge)
                self._free = 0
            start = self._free
            self._free += size
            return self._region.array[start : start + nbytes]
