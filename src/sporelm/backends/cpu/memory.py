"""Memory for weights, pages and values: zeroed, aligned, in large pages where the system gives them."""

import mmap
import threading

import numpy as np

ALIGNMENT = 64
HUGE = 2 << 20


class Region:
    """Anonymous memory. Untouched parts cost nothing; freed when the last array on it is gone."""

    def __init__(self, nbytes: int, huge: bool = True) -> None:
        alignment = HUGE if huge and nbytes >= HUGE else ALIGNMENT
        self._map = mmap.mmap(-1, max(nbytes, 1) + alignment)
        whole = np.frombuffer(self._map, np.uint8)
        start = -whole.ctypes.data % alignment
        if alignment == HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # the kernel has no large pages: slower, not wrong
        self.array = whole[start : start + nbytes]
        self.address = int(self.array.ctypes.data)


class Heap:
    """Hands out aligned pieces of large regions; never takes one back (weights live as long as the model)."""

    def __init__(self, region_bytes: int = 64 << 20) -> None:
        self.region_bytes = region_bytes
        self._regions: list[Region] = []
        self._free = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> np.ndarray:
        """A zeroed uint8 array, 64-byte aligned."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if not self._regions or self._free + size > self._regions[-1].array.size:
                self._regions.append(Region(max(size, self.region_bytes)))
                self._free = 0
            start = self._free
            self._free += size
            return self._regions[-1].array[start : start + nbytes]
