"""How a thread pool ends: closed, dropped, forked, interrupted; and workers that do not start."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.runtime.thread_pool import ThreadPool
from unit.backends.cpu.thread_pool_work import CountingLoop, hasty, parked, threads, wait_until, workers_of

__all__ = ["hasty", "threads"]  # fixtures

SETUP = """
import gc, os, threading
from time import monotonic, sleep
import numpy as np
from sporelm import ops
from sporelm.backends.cpu import CpuBackend

def use(backend):
    x = backend.tensor(np.ones((64, 64), np.float32))
    assert (ops.add(x, x).numpy() == 2).all()

def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sporelm-")]
"""


def run_python(root: Path, program: str) -> str:
    """Run a script in a new process, which must exit with 0, and return its output."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SETUP + textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": str(root / "src")},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout.strip()


def drop_a_thread_pool(compiler: Compiler, threads: int, asleep: bool) -> tuple[list[threading.Thread], Any]:
    """The workers of a thread pool that was used and then forgotten, and a weak reference to what they hold."""
    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, threads)
    thread_pool.run(work.table)
    work.check(1)
    if asleep:
        wait_until(lambda: parked(thread_pool) == threads - 1)
    assert thread_pool._pool_threads is not None
    return workers_of(thread_pool), weakref.ref(thread_pool._pool_threads)


@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.usefixtures("hasty")
def test_a_dropped_thread_pool_stops_its_workers(compiler: Compiler, threads: int, asleep: bool) -> None:
    workers, threads_of_pool = drop_a_thread_pool(compiler, threads, asleep)
    gc.collect()
    wait_until(lambda: not any(worker.is_alive() for worker in workers))
    wait_until(lambda: threads_of_pool() is None)


def test_a_back_end_dropped_right_after_a_step(root: Path) -> None:
    """The compiled code must live as long as a thread is in it, and no thread may stay."""
    program = """
    for number in range(6):
        backend = CpuBackend(threads=3)
        use(backend)
        if number == 3:
            sleep(0.2)  # this one's workers sleep
        del backend
        gc.collect()
    end = monotonic() + 60
    while workers() and monotonic() < end:
        sleep(0.01)
    print(len(workers()))
    """
    assert run_python(root, program) == "0"


def test_a_process_ends_with_an_open_thread_pool(root: Path) -> None:
    assert run_python(root, "backend = CpuBackend(threads=3); use(backend); print(len(workers()))") == "2"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that signal are POSIX")
@pytest.mark.usefixtures("hasty")
def test_an_exception_at_any_moment_leaves_whole_steps(compiler: Compiler, threads: int) -> None:
    """Ctrl-C comes between any two instructions of Python; a step is done or not begun, and the thread pool goes on."""

    class Interrupt(Exception):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    thread_pool = ThreadPool(compiler, threads)
    work = CountingLoop(compiler, threads, 50)
    thread_pool.run(work.table)
    before = signal.signal(signal.SIGALRM, interrupt)
    heard = 0
    try:
        for turn in range(300):
            if turn % 3 == 0:
                wait_until(lambda: parked(thread_pool) == threads - 1)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + turn % 25 * 0.00001)
                while True:
                    thread_pool.run(work.table)
            except Interrupt:
                heard += 1
            steps = int(work.x[0]) // 2
            work.check(steps)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard == 300
    thread_pool.run(work.table)
    work.check(steps + 1)
    thread_pool.close()


def test_an_exception_while_workers_start(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers that did start leave again; the next step has a full thread pool."""
    thread_pool = ThreadPool(compiler, 3)
    work = CountingLoop(compiler, 3)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def stumble(worker: threading.Thread) -> None:
        if started:
            raise KeyboardInterrupt
        started.append(worker)
        start(worker)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", stumble)
        with pytest.raises(KeyboardInterrupt):
            thread_pool.run(work.table)
    assert len(started) == 1
    wait_until(lambda: not started[0].is_alive())
    for _ in range(20):
        thread_pool.run(work.table)
    work.check(20)
    thread_pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
def test_a_forked_process_is_told_that_it_has_no_threads(root: Path) -> None:
    program = """
    import warnings
    from sporelm.errors import ContextError
    warnings.simplefilter("ignore")  # that processes with threads should not fork
    used, fresh = CpuBackend(threads=2), CpuBackend(threads=2)
    use(used)
    child = os.fork()
    if child == 0:
        try:
            use(used)
        except ContextError as error:
            assert "fork" in str(error), error
            use(fresh)  # it had no threads yet
            used.close()
            fresh.close()
            os._exit(7)
        os._exit(8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    use(used)
    """
    assert run_python(root, program) == "7"
