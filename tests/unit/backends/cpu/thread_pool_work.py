"""A step for a thread pool, and waits for what its threads do."""

import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from sporelm.backends.cpu.cpu_program import CellTable, assemble
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.lowering.emitter import Cell, KernelEntry
from sporelm.backends.cpu.runtime import thread_pool as thread_pool_module
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.step_loops import (
    PARKED,
    THREAD,
    THREAD_LINES,
    WaitPolicy,
)
from sporelm.backends.cpu.runtime.thread_pool import EntryTable, ThreadPool

ITEMS = 1000


def added() -> Kernel:
    """x[item] += 1."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            k.store(k.load(i64, f.x, item * 8) + 1, f.x, item * 8)

    return Kernel("test_added", parse_fields("x:p"), body)


def mirrored() -> Kernel:
    """y[item] = x[count - 1 - item]: mostly what another thread wrote."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            k.store(k.load(i64, f.x, (f.count - 1 - item) * 8), f.y, item * 8)

    return Kernel("test_mirrored", parse_fields("x:p y:p count:i"), body)


class CountingLoop:
    """A step: count up, mirror, count the mirror up, mirror back."""

    def __init__(self, compiler: Compiler, threads: int, items: int = ITEMS, grain: int = 7) -> None:
        self.x, self.y = np.arange(items), np.zeros(items, np.int64)
        x, y = self.x.ctypes.data, self.y.ctypes.data
        count = Cell("items", items)
        entries = [
            KernelEntry(added(), {"x": x}, count, grain=grain),
            KernelEntry(mirrored(), {"x": x, "y": y, "count": items}, count, grain=grain),
            KernelEntry(added(), {"x": y}, count, grain=1),
            KernelEntry(mirrored(), {"x": y, "y": x, "count": items}, count, grain=items),
        ]
        self.cells, self.own = CellTable(), list[Region]()
        self.table: EntryTable = assemble(entries, compiler, self.cells, self.own, threads)

    def check(self, steps: int) -> None:
        items = len(self.x)
        assert np.array_equal(self.x, np.arange(items) + 2 * steps)
        assert np.array_equal(self.y, self.x[::-1])


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def thread_pool(compiler: Compiler, threads: int) -> Iterator[ThreadPool]:
    made = ThreadPool(compiler, threads)
    yield made
    made.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers park soon after they begin to yield, so that tests need not wait for it."""
    monkeypatch.setattr(thread_pool_module, "WAIT_POLICY", WaitPolicy(patience=WaitPolicy().spins + 200))


def wait_until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not condition():
        assert monotonic() < end, "waited a minute"
        sleep(0.005)


def parked(thread_pool: ThreadPool) -> int:
    assert thread_pool._pool_threads is not None
    flags = [(THREAD_LINES + thread * THREAD + PARKED) // 8 for thread in range(1, thread_pool.threads)]
    return sum(int(thread_pool._pool_threads.words[flag]) for flag in flags)


def workers_of(thread_pool: ThreadPool) -> list[threading.Thread]:
    assert thread_pool._pool_threads is not None
    return list(thread_pool._pool_threads.workers)
