"""The thread team: every item once, barriers between entries, sleep and wake, a busy neighbour, closing."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import numpy as np
import pytest

from sporelm.backends.cpu import team as team_module
from sporelm.backends.cpu.entries import Cell, Entry
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val, i64
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.steps import EPOCH, MAX_CHUNKS, MAX_EPOCH, PARKED, THREAD, THREAD_LINES, Waiting
from sporelm.backends.cpu.memory import Region
from sporelm.backends.cpu.program import Cells, assemble
from sporelm.backends.cpu.targets import Target
from sporelm.backends.cpu.team import Table, Team
from sporelm.errors import ContextError, MemoryShortage

ITEMS = 1000


def added() -> Kernel:
    """x[item] += 1."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            k.store(k.load(i64, f.x, item * 8) + 1, f.x, item * 8)

    return Kernel("test_added", fields("x:p"), body)


def mirrored() -> Kernel:
    """y[item] = x[count - 1 - item]: mostly what another thread wrote."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            k.store(k.load(i64, f.x, (f.count - 1 - item) * 8), f.y, item * 8)

    return Kernel("test_mirrored", fields("x:p y:p count:i"), body)


class Work:
    """A step: count up, mirror, count the mirror up, mirror back."""

    def __init__(self, compiler: Compiler, threads: int, items: int = ITEMS, grain: int = 7) -> None:
        self.x, self.y = np.arange(items), np.zeros(items, np.int64)
        x, y = self.x.ctypes.data, self.y.ctypes.data
        count = Cell("items", items)
        entries = [
            Entry(added(), {"x": x}, count, grain=grain),
            Entry(mirrored(), {"x": x, "y": y, "count": items}, count, grain=grain),
            Entry(added(), {"x": y}, count, grain=1),
            Entry(mirrored(), {"x": y, "y": x, "count": items}, count, grain=items),
        ]
        self.cells, self.own = Cells(), list[Region]()
        self.table: Table = assemble(entries, compiler, self.cells, self.own, threads)

    def check(self, steps: int) -> None:
        items = len(self.x)
        assert np.array_equal(self.x, np.arange(items) + 2 * steps)
        assert np.array_equal(self.y, self.x[::-1])


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def team(compiler: Compiler, threads: int) -> Iterator[Team]:
    made = Team(compiler, threads)
    yield made
    made.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers park soon after they begin to yield, so that tests need not wait for it."""
    monkeypatch.setattr(team_module, "WAITING", Waiting(patience=Waiting().spins + 200))


def wait_until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not condition():
        assert monotonic() < end, "waited a minute"
        sleep(0.005)


def parked(team: Team) -> int:
    assert team._crew is not None
    flags = [(THREAD_LINES + thread * THREAD + PARKED) // 8 for thread in range(1, team.threads)]
    return sum(int(team._crew.words[flag]) for flag in flags)


def workers_of(team: Team) -> list[threading.Thread]:
    assert team._crew is not None
    return list(team._crew.workers)


@pytest.mark.parametrize(("items", "grain"), [(ITEMS, 7), (1, 1), (2, 5), (13, 100), (64, 64)])
def test_every_item_is_done_once(compiler: Compiler, team: Team, items: int, grain: int) -> None:
    work = Work(compiler, team.threads, items, grain)
    for _ in range(200):
        team.run(work.table)
    work.check(200)


def test_steps_whose_table_is_gone_at_once(compiler: Compiler, team: Team) -> None:
    """Guards that skip the last entries: no thread may still look at them when the step has returned."""
    for step in range(100):
        work = Work(compiler, team.threads, 40)
        cells, own = Cells(), list[Region]()
        skipped = (Cell("never", 0), 1, 1)
        entries = [Entry(added(), {"x": work.x.ctypes.data}, Cell("items", 40))]
        entries += [Entry(added(), {"x": 0}, Cell("items", 40), guard=skipped) for _ in range(20)]
        table = assemble(entries, compiler, cells, own, team.threads)
        team.run(table)
        table.entries[:] = -1
        cells.words[:] = 1
        assert np.array_equal(work.x, np.arange(40) + 1), f"step {step}"


def test_a_step_without_items_returns(compiler: Compiler, team: Team) -> None:
    entry = Entry(added(), {"x": 0}, Cell("none", 0))
    table = assemble([entry], compiler, cells := Cells(), own := [], team.threads)
    work = Work(compiler, team.threads)
    for _ in range(50):
        team.run(table)
        team.run(work.table)
    work.check(50)
    del cells, own


@pytest.mark.usefixtures("hasty")
def test_idle_workers_park_and_wake(compiler: Compiler, threads: int) -> None:
    team = Team(compiler, threads)
    work = Work(compiler, team.threads)
    for step in range(5):
        team.run(work.table)
        wait_until(lambda: parked(team) == team.threads - 1)
        work.check(step + 1)
    for _ in range(100):
        team.run(work.table)
    work.check(105)
    team.close()


@pytest.mark.usefixtures("hasty")
def test_steps_at_the_moment_of_parking(compiler: Compiler, threads: int) -> None:
    """Pauses of every length around the patience of a worker."""
    team = Team(compiler, threads)
    work = Work(compiler, team.threads, 50)
    for step in range(150):
        sleep(step % 30 * 0.0001)
        team.run(work.table)
    work.check(150)
    team.close()


def test_a_busy_neighbour_only_costs_time(compiler: Compiler, team: Team) -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        work = Work(compiler, team.threads)
        for _ in range(30):
            team.run(work.table)
        work.check(30)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def spin(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
    """So many turns for each item, of a product that no compiler foresees."""
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
    team = Team(compiler, threads)
    work = Work(compiler, threads)
    with monkeypatch.context() as patch:
        withheld = withhold_workers(patch)
        for _ in range(50):
            team.run(work.table)
        assert len(withheld) == threads - 1
    work.check(50)
    for worker in withheld:
        worker.start()
    for _ in range(50):
        team.run(work.table)
    work.check(100)
    team.close()
    assert not any(worker.is_alive() for worker in withheld)


def test_workers_that_come_at_any_moment(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late by any number of steps, some of whose tables and cells are gone."""
    for number in range(20):
        team = Team(compiler, 3)
        with monkeypatch.context() as patch:
            withheld = withhold_workers(patch)
            work = Work(compiler, 3, 50)
            team.run(work.table)
        for step in range(60):
            if step == number:
                withheld[0].start()
            if step == 2 * number:
                withheld[1].start()
            passing = Work(compiler, 3, 40 + step)
            team.run(passing.table)
            passing.check(1)
            passing.table.entries[:] = -1
            passing.cells.words[:] = 1
            team.run(work.table)
        work.check(61)
        team.close()


def test_who_waits_long_sleeps(compiler: Compiler) -> None:
    """One thread is a quarter of a second at its chunk: the others do not burn their cores meanwhile."""
    if type(compiler.target) is Target:
        pytest.skip("this CPU has no counter that programs may read: threads wait by turns")
    team = Team(compiler, 3)
    turns = np.array([1000, 1000, 1000], np.int64)
    x = np.zeros(3 * 8, np.int64)
    kernel = Kernel("test_spin", fields("x:p turns:p"), spin)
    count = Cell("items", 3)
    values = {"x": x.ctypes.data, "turns": turns.ctypes.data}
    cells, own = Cells(), list[Region]()
    table = assemble([Entry(kernel, values, count)], compiler, cells, own, 3)
    team.run(table)
    while True:  # find out how many turns last that long
        turns[2] *= 2
        began, cpu = perf_counter(), process_time()
        team.run(table)
        seconds, cpu = perf_counter() - began, process_time() - cpu
        if seconds > 0.25:
            break
    assert cpu < 1.5 * seconds
    team.close()


def test_more_chunks_than_a_claim_counts(compiler: Compiler) -> None:
    items = 3 * MAX_CHUNKS
    team = Team(compiler, 2)
    x = np.zeros(items, np.int64)
    table = assemble(
        [Entry(added(), {"x": x.ctypes.data}, Cell("items", items))], compiler, cells := Cells(), own := [], 2
    )
    team.run(table)
    team.run(table)
    assert (x == 2).all()
    team.close()
    del cells, own


def test_epochs_that_claims_cannot_hold(compiler: Compiler, team: Team) -> None:
    """After months of computing the workers are replaced by others, which begin at zero."""
    work = Work(compiler, team.threads)
    team.run(work.table)
    before = workers_of(team)
    assert team._crew is not None
    words = team._crew.words
    words[EPOCH // 8] = MAX_EPOCH - 2 + words[EPOCH // 8] % 2  # the next step, and no further one; the same post counts
    for _ in range(5):
        team.run(work.table)
    work.check(6)
    assert not any(worker.is_alive() for worker in before)
    assert len(workers_of(team)) == team.threads - 1
    assert team._crew.words[EPOCH // 8] < 100


def test_a_thread_that_cannot_be_started(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    team = Team(compiler, 2)
    work = Work(compiler, 2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(MemoryShortage, match=r"threads: .* fewer with --threads"):
            team.run(work.table)
    team.run(work.table)
    work.check(1)
    team.close()


def test_callers_at_once_take_turns(compiler: Compiler, team: Team) -> None:
    works = [Work(compiler, team.threads, 100) for _ in range(4)]

    def call(work: Work) -> None:
        for _ in range(100):
            team.run(work.table)

    callers = [threading.Thread(target=call, args=(work,)) for work in works]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for work in works:
        work.check(100)


def test_a_closed_team_says_so(compiler: Compiler, threads: int) -> None:
    team = Team(compiler, threads)
    work = Work(compiler, threads)
    team.run(work.table)
    workers = workers_of(team)
    assert len(workers) == threads - 1
    team.close()
    assert not any(worker.is_alive() for worker in workers)
    with pytest.raises(ContextError, match="closed"):
        team.run(work.table)
    team.close()
    work.check(1)


@pytest.mark.usefixtures("hasty")
def test_closing_wakes_workers_that_sleep(compiler: Compiler, threads: int) -> None:
    team = Team(compiler, threads)
    work = Work(compiler, threads)
    team.run(work.table)
    wait_until(lambda: parked(team) == threads - 1)
    team.close()
    assert not any(worker.is_alive() for worker in workers_of(team))


def test_a_team_that_never_ran_can_be_closed(compiler: Compiler, threads: int) -> None:
    Team(compiler, threads).close()


def test_many_teams_of_one_compiler(compiler: Compiler) -> None:
    teams = [Team(compiler, 2) for _ in range(4)]
    works = [Work(compiler, 2, 60) for _ in teams]
    for _ in range(20):
        for team, work in zip(teams, works, strict=True):
            team.run(work.table)
    for team, work in zip(teams, works, strict=True):
        work.check(20)
        team.close()
