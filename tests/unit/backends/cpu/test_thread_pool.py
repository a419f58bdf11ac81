"""The thread pool: every item once, barriers between entries, sleep and wake, a busy neighbour, closing."""

import os
import subprocess
import sys
import threading
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import pytest

from sporelm.backends.cpu.cpu_program import CellTable, assemble
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.lowering.emitter import Cell, KernelEntry
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.step_loops import (
    EPOCH,
    MAX_CHUNKS,
    MAX_EPOCH,
)
from sporelm.backends.cpu.runtime.thread_pool import ThreadPool
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.errors import ContextError, MemoryShortage
from unit.backends.cpu.thread_pool_work import (
    ITEMS,
    CountingLoop,
    added,
    hasty,
    parked,
    thread_pool,
    threads,
    wait_until,
    workers_of,
)

__all__ = ["hasty", "thread_pool", "threads"]  # fixtures


@pytest.mark.parametrize(("items", "grain"), [(ITEMS, 7), (1, 1), (2, 5), (13, 100), (64, 64)])
def test_every_item_is_done_once(compiler: Compiler, thread_pool: ThreadPool, items: int, grain: int) -> None:
    work = CountingLoop(compiler, thread_pool.threads, items, grain)
    for _ in range(200):
        thread_pool.run(work.table)
    work.check(200)


def test_steps_whose_table_is_gone_at_once(compiler: Compiler, thread_pool: ThreadPool) -> None:
    """Guards that skip the last entries: no thread may still look at them when the step has returned."""
    for step in range(100):
        work = CountingLoop(compiler, thread_pool.threads, 40)
        cells, own = CellTable(), list[Region]()
        skipped = (Cell("never", 0), 1, 1)
        entries = [KernelEntry(added(), {"x": work.x.ctypes.data}, Cell("items", 40))]
        entries += [KernelEntry(added(), {"x": 0}, Cell("items", 40), guard=skipped) for _ in range(20)]
        table = assemble(entries, compiler, cells, own, thread_pool.threads)
        thread_pool.run(table)
        table.entries[:] = -1
        cells.words[:] = 1
        assert np.array_equal(work.x, np.arange(40) + 1), f"step {step}"


def test_a_step_without_items_returns(compiler: Compiler, thread_pool: ThreadPool) -> None:
    entry = KernelEntry(added(), {"x": 0}, Cell("none", 0))
    table = assemble([entry], compiler, cells := CellTable(), own := [], thread_pool.threads)
    work = CountingLoop(compiler, thread_pool.threads)
    for _ in range(50):
        thread_pool.run(table)
        thread_pool.run(work.table)
    work.check(50)
    del cells, own


@pytest.mark.usefixtures("hasty")
def test_idle_workers_park_and_wake(compiler: Compiler, threads: int) -> None:
    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, thread_pool.threads)
    for step in range(5):
        thread_pool.run(work.table)
        wait_until(lambda: parked(thread_pool) == thread_pool.threads - 1)
        work.check(step + 1)
    for _ in range(100):
        thread_pool.run(work.table)
    work.check(105)
    thread_pool.close()


@pytest.mark.usefixtures("hasty")
def test_steps_at_the_moment_of_parking(compiler: Compiler, threads: int) -> None:
    """Pauses of every length around the patience of a worker."""
    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, thread_pool.threads, 50)
    for step in range(150):
        sleep(step % 30 * 0.0001)
        thread_pool.run(work.table)
    work.check(150)
    thread_pool.close()


def test_a_busy_neighbour_only_costs_time(compiler: Compiler, thread_pool: ThreadPool) -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        work = CountingLoop(compiler, thread_pool.threads)
        for _ in range(30):
            thread_pool.run(work.table)
        work.check(30)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def spin(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
    """Run `turns` multiplications for each item, which a compiler cannot fold."""
    with k.range(first, last) as item, k.range(k.load(i64, f.turns, item * 8)):
        k.store(k.load(i64, f.x, item * 64) * 6364136223846793005 + 1442695040888963407, f.x, item * 64)


def withhold_workers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Workers are not started but gathered here."""
    withheld: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda worker: withheld.append(worker))
    return withheld


def test_a_step_does_not_wait_for_a_worker_without_work(
    compiler: Compiler, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that the system gives no core, for as long as it likes, here from the beginning on: others do their work.
    When they come at last they take part."""
    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, threads)
    with monkeypatch.context() as patch:
        withheld = withhold_workers(patch)
        for _ in range(50):
            thread_pool.run(work.table)
        assert len(withheld) == threads - 1
    work.check(50)
    for worker in withheld:
        worker.start()
    for _ in range(50):
        thread_pool.run(work.table)
    work.check(100)
    thread_pool.close()
    assert not any(worker.is_alive() for worker in withheld)


def test_workers_that_come_at_any_moment(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late by any number of steps, some of whose tables and cells are gone."""
    for number in range(20):
        thread_pool = ThreadPool(compiler, 3)
        with monkeypatch.context() as patch:
            withheld = withhold_workers(patch)
            work = CountingLoop(compiler, 3, 50)
            thread_pool.run(work.table)
        for step in range(60):
            if step == number:
                withheld[0].start()
            if step == 2 * number:
                withheld[1].start()
            passing = CountingLoop(compiler, 3, 40 + step)
            thread_pool.run(passing.table)
            passing.check(1)
            passing.table.entries[:] = -1
            passing.cells.words[:] = 1
            thread_pool.run(work.table)
        work.check(61)
        thread_pool.close()


def test_who_waits_long_sleeps(compiler: Compiler) -> None:
    """One thread is a quarter of a second at its chunk: the others do not burn their cores meanwhile."""
    if type(compiler.target) is CpuTarget:
        pytest.skip("this CPU has no counter that programs may read: threads wait by turns")
    thread_pool = ThreadPool(compiler, 3)
    turns = np.array([1000, 1000, 1000], np.int64)
    x = np.zeros(3 * 8, np.int64)
    kernel = Kernel("test_spin", parse_fields("x:p turns:p"), spin)
    count = Cell("items", 3)
    values = {"x": x.ctypes.data, "turns": turns.ctypes.data}
    cells, own = CellTable(), list[Region]()
    table = assemble([KernelEntry(kernel, values, count)], compiler, cells, own, 3)
    thread_pool.run(table)
    while True:  # find out how many turns last that long
        turns[2] *= 2
        began, cpu = perf_counter(), process_time()
        thread_pool.run(table)
        seconds, cpu = perf_counter() - began, process_time() - cpu
        if seconds > 0.25:
            break
    assert cpu < 1.5 * seconds
    thread_pool.close()


def test_more_chunks_than_a_claim_counts(compiler: Compiler) -> None:
    items = 3 * MAX_CHUNKS
    thread_pool = ThreadPool(compiler, 2)
    x = np.zeros(items, np.int64)
    table = assemble(
        [KernelEntry(added(), {"x": x.ctypes.data}, Cell("items", items))], compiler, cells := CellTable(), own := [], 2
    )
    thread_pool.run(table)
    thread_pool.run(table)
    assert (x == 2).all()
    thread_pool.close()
    del cells, own


def test_epochs_that_claims_cannot_hold(compiler: Compiler, thread_pool: ThreadPool) -> None:
    """After months of computing the workers are replaced by others, which begin at zero."""
    work = CountingLoop(compiler, thread_pool.threads)
    thread_pool.run(work.table)
    before = workers_of(thread_pool)
    assert thread_pool._pool_threads is not None
    words = thread_pool._pool_threads.words
    words[EPOCH // 8] = MAX_EPOCH - 2 + words[EPOCH // 8] % 2  # the next step, and no further one; the same post counts
    for _ in range(5):
        thread_pool.run(work.table)
    work.check(6)
    assert not any(worker.is_alive() for worker in before)
    assert len(workers_of(thread_pool)) == thread_pool.threads - 1
    assert thread_pool._pool_threads.words[EPOCH // 8] < 100


def test_a_thread_that_cannot_be_started(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread_pool = ThreadPool(compiler, 2)
    work = CountingLoop(compiler, 2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(MemoryShortage, match=r"threads: .* fewer with the option threads"):
            thread_pool.run(work.table)
    thread_pool.run(work.table)
    work.check(1)
    thread_pool.close()


def test_callers_at_once_take_turns(compiler: Compiler, thread_pool: ThreadPool) -> None:
    works = [CountingLoop(compiler, thread_pool.threads, 100) for _ in range(4)]

    def call(work: CountingLoop) -> None:
        for _ in range(100):
            thread_pool.run(work.table)

    callers = [threading.Thread(target=call, args=(work,)) for work in works]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for work in works:
        work.check(100)


def test_a_closed_thread_pool_says_so(compiler: Compiler, threads: int) -> None:
    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, threads)
    thread_pool.run(work.table)
    workers = workers_of(thread_pool)
    assert len(workers) == threads - 1
    thread_pool.close()
    assert not any(worker.is_alive() for worker in workers)
    with pytest.raises(ContextError, match="closed"):
        thread_pool.run(work.table)
    thread_pool.close()
    work.check(1)


@pytest.mark.usefixtures("hasty")
def test_closing_wakes_workers_that_sleep(compiler: Compiler, threads: int) -> None:
    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, threads)
    thread_pool.run(work.table)
    wait_until(lambda: parked(thread_pool) == threads - 1)
    thread_pool.close()
    assert not any(worker.is_alive() for worker in workers_of(thread_pool))


def test_a_thread_pool_that_never_ran_can_be_closed(compiler: Compiler, threads: int) -> None:
    ThreadPool(compiler, threads).close()


def test_many_thread_pools_of_one_compiler(compiler: Compiler) -> None:
    thread_pools = [ThreadPool(compiler, 2) for _ in range(4)]
    works = [CountingLoop(compiler, 2, 60) for _ in thread_pools]
    for _ in range(20):
        for pool, work in zip(thread_pools, works, strict=True):
            pool.run(work.table)
    for pool, work in zip(thread_pools, works, strict=True):
        work.check(20)
        pool.close()
