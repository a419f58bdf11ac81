"""The thread team: every item once, barriers between entries, sleep and wake, a busy neighbour, closing."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from sporelm.backends.cpu import team as team_module
from sporelm.backends.cpu.entries import Cell, Entry
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val, i64
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.steps import LINE, PARKED
from sporelm.backends.cpu.memory import Region
from sporelm.backends.cpu.program import Cells, assemble
from sporelm.backends.cpu.team import Table, Team
from sporelm.errors import ContextError

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
    monkeypatch.setattr(team_module, "PATIENCE", team_module.SPINS + 200)


def wait_until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not condition():
        assert monotonic() < end, "waited a minute"
        sleep(0.005)


def parked(team: Team) -> int:
    assert team._crew is not None
    return sum(int(team._crew.words[(PARKED + thread * LINE) // 8]) for thread in range(1, team.threads))


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
