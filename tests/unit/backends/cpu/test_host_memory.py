"""Memory: aligned, zeroed, and never handed out twice."""

import gc
import mmap
import threading
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sporelm.backends.cpu.runtime.host_memory import ALIGNMENT, HUGE, Heap, Region


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4096, HUGE - 1, HUGE, HUGE + 1])
@pytest.mark.parametrize("huge", [True, False])
def test_a_region_is_aligned_and_zeroed(nbytes: int, huge: bool) -> None:
    region = Region(nbytes, huge)
    assert region.array.size == nbytes
    assert region.address % (HUGE if huge and nbytes >= HUGE else ALIGNMENT) == 0
    assert not region.array.any()
    region.array[:] = 255


def test_a_region_lives_as_long_as_arrays_on_it() -> None:
    array = Region(1 << 20).array[5:]
    array[:] = 7
    others = [Region(1 << 20) for _ in range(4)]
    assert (array == 7).all()
    assert not any(other.array.any() for other in others)


def test_pieces_of_a_heap_are_aligned_zeroed_and_apart() -> None:
    heap = Heap(region_bytes=4096)
    pieces = [heap.take(nbytes) for nbytes in (1, 64, 65, 1000, 3000, 0, 10_000, 5)]
    for value, piece in enumerate(pieces):
        assert piece.ctypes.data % ALIGNMENT == 0
        assert not piece.any()
        piece[:] = value + 1
    assert [piece.size for piece in pieces] == [1, 64, 65, 1000, 3000, 0, 10_000, 5]
    assert all((piece == value + 1).all() for value, piece in enumerate(pieces))


def test_a_full_region_goes_with_the_last_of_its_pieces() -> None:
    heap = Heap(region_bytes=4096, huge=False)
    first, second = heap.take(2000), heap.take(2000)
    memory = weakref.ref(memory_of(first))
    assert memory() is memory_of(second)
    kept = heap.take(2000)  # of the next region
    del first
    gc.collect()
    assert memory() is not None
    del second
    gc.collect()
    assert memory() is None
    assert not kept.any()


def memory_of(array: np.ndarray) -> mmap.mmap:
    """Return the buffer that an array lies in."""
    owner: Any = array
    while not isinstance(owner, mmap.mmap):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner


def test_threads_may_take_at_once() -> None:
    heap = Heap(region_bytes=1 << 16)
    taken: list[np.ndarray] = []

    def take_pieces() -> None:
        taken.extend(heap.take(100) for _ in range(200))

    threads = [threading.Thread(target=take_pieces) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    starts = sorted(piece.ctypes.data for piece in taken)
    assert len(starts) == 800
    assert all(after - before >= 128 for before, after in pairwise(starts))
