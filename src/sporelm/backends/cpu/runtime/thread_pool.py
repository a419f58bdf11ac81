"""The thread pool: workers that spin for the next step, then sleep; one native call per thread and step.

Workers stay in native code, asleep as well as awake. One native call launches a step, runs it and waits for it, so that
Python's exceptions cannot come in between. A pool that is dropped without `close` stops its workers.
"""

import ctypes
import os
import sys
import threading
import weakref
from time import perf_counter
from typing import Any

import numpy as np

from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.runtime.call_times import StepTicks, call_times
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.step_loops import (
    ACQUIRE,
    CHAIN,
    EPOCH,
    JOB_THREADS,
    JOB_TIMES,
    LOCK,
    MAX_EPOCH,
    RATE,
    RELEASE,
    STOP,
    THREAD,
    THREAD_LINES,
    YIELD,
    StepLoops,
    WaitPolicy,
)
from sporelm.backends.cpu.runtime.timed_loops import HEAD, RECORD, TimedLoops
from sporelm.backends.protocol import CallTime
from sporelm.errors import ContextError, thread_shortage
from sporelm.ops import Call

WAIT_POLICY = WaitPolicy()
RATE_SECONDS = 0.0005  # the time in which the rate of the CPU's counter is measured
SCRATCH_BYTES = 16 << 20  # bytes of scratch memory per thread; untouched pages cost nothing
CLOSED_MESSAGE = "thread pool: closed. Open a new back-end."
FORKED_MESSAGE = (
    "thread pool: not usable after a fork, because a child process has none of its parent's threads. Load the model in "
    "the child process."
)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def yield_address() -> int:
    """Return the address of the system call that yields the core."""
    if sys.platform == "win32":
        return _address(ctypes.windll.kernel32.SwitchToThread)
    return _address(ctypes.CDLL(None).sched_yield)


class NativeLock:
    """A lock of Python's C API, taken: native code sleeps on it and releases it without the interpreter lock."""

    def __init__(self) -> None:
        python = ctypes.pythonapi
        allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", python))
        acquire = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(("PyThread_acquire_lock", python))
        free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyThread_free_lock", python))
        self.address = int(allocate() or 0)
        if not self.address:
            raise MemoryError("no memory for a lock")
        acquire(self.address, 1)
        weakref.finalize(self, free, self.address).atexit = False


class EntryTable:
    """The entries of a step, in native form."""

    def __init__(self, entries: np.ndarray, threads: int) -> None:
        self.entries = np.ascontiguousarray(entries, np.int64)
        self.job = (int(self.entries.ctypes.data), len(entries))
        self.threads = threads
        self.names: list[tuple[Call, str]] = []  # for each entry its call, and its kernel
        self.times: Region | None = None  # the output of a timed step: see `TimedLoops`

    def clear_times(self) -> int:
        """Return the address at which the next step writes its times."""
        if self.times is None:
            self.times = Region(HEAD + max(1, len(self.entries)) * self.threads * RECORD)
        self.times.array[:] = 0
        return self.times.address

    def ticks(self, began: float, ended: float) -> StepTicks:
        """Return a copy of the output of the last timed step, which was called and returned at these moments."""
        assert self.times is not None
        words = self.times.array.view(np.int64).copy()
        records = words[HEAD // 8 :].reshape(self.threads, -1, RECORD // 8)
        return StepTicks(words[: HEAD // 8], records, self.entries[:, CHAIN // 8].tolist(), self.names, began, ended)


class PoolThreads:
    """Workers 1 to `threads` - 1 and their resources, including the compiler's code; the workers keep them alive."""

    def __init__(self, compiler: Compiler, loops: StepLoops, threads: int) -> None:
        void, integer = ctypes.c_void_p, ctypes.c_int64
        self.compiler = compiler
        self._serve = ctypes.CFUNCTYPE(None, void, integer, void)(compiler.symbol(f"{loops.name}_serve"))
        native = compiler.symbol(f"{loops.name}_launch")
        self.launch = ctypes.CFUNCTYPE(None, void, void, integer, integer)(native)
        self._clock = ctypes.CFUNCTYPE(None, void)(compiler.symbol(f"{loops.name}_clock"))
        self.shared = Region(THREAD_LINES + threads * THREAD)
        self.words = self.shared.array.view(np.int64)
        self.scratch = [Region(SCRATCH_BYTES) for _ in range(threads)]
        self._locks = [NativeLock() for _ in range(threads)]
        python = ctypes.pythonapi
        self.words[YIELD // 8] = yield_address()
        self.words[ACQUIRE // 8] = _address(python.PyThread_acquire_lock)
        self.words[RELEASE // 8] = _address(python.PyThread_release_lock)
        self.words[JOB_THREADS // 8] = threads
        self.idle_times = Region(HEAD)  # times of the empty step that stops the workers
        for number, lock in enumerate(self._locks):
            self.words[(THREAD_LINES + number * THREAD + LOCK) // 8] = lock.address
        self.words[RATE // 8] = self._ticks_a_millisecond() if threads > 1 else 0
        self.workers = [
            threading.Thread(target=self._run_thread, args=(number,), name=f"sporelm-{number}", daemon=True)
            for number in range(1, threads)
        ]

    def _ticks_a_millisecond(self) -> int:
        """Return the rate of the CPU's counter; 0 without a counter."""
        ticks = np.zeros(2, np.int64)
        self._clock(ticks.ctypes.data)
        began = perf_counter()
        while (spent := perf_counter() - began) < RATE_SECONDS:
            pass
        self._clock(ticks[1:].ctypes.data)
        return max(0, int((ticks[1] - ticks[0]) / spent / 1000))

    def start(self) -> None:
        """Start all workers, or none if this raises. Raise MemoryShortage where one cannot be started."""
        try:
            for worker in self.workers:
                worker.start()
        except BaseException as error:
            self.stop()
            raise thread_shortage(error) or error from None

    def _run_thread(self, number: int) -> None:
        self._serve(self.shared.address, number, self.scratch[number].address)

    def is_worn_out(self) -> bool:
        """Return whether epochs soon become too large for claims, after months of computing."""
        return int(self.words[EPOCH // 8]) > MAX_EPOCH

    def stop(self) -> None:
        """Tell the workers to leave. They leave soon; may be called at any time between steps, and repeatedly."""
        self.words[STOP // 8] = 1
        self.words[JOB_TIMES // 8] = self.idle_times.address
        self.launch(self.shared.address, self.scratch[0].address, 0, 0)


class ThreadPool:
    """`threads` threads, including the caller's. Steps run one at a time. Workers start with the first step."""

    def __init__(self, compiler: Compiler, threads: int) -> None:
        self.threads = threads
        self._compiler = compiler  # owns the code of the loops and of every kernel in a table
        self._loops: StepLoops = StepLoops(WAIT_POLICY)
        compiler.address(self._loops)
        self._ticks: list[StepTicks] = []  # of timed steps
        self._pool_threads: PoolThreads | None = None
        self._refusal: str | None = None
        self._lock = threading.Lock()
        _POOLS.add(self)

    def start(self) -> None:
        """Start the workers now, if none run. They keep the cores to which the calling thread is pinned."""
        with self._lock:
            if self._refusal:
                raise ContextError(self._refusal)
            if self._pool_threads is None:
                self._start()

    def run(self, table: EntryTable) -> None:
        """Run a step to its end. Raise ContextError when the pool is closed, or in a forked process."""
        with self._lock:
            if self._refusal:
                raise ContextError(self._refusal)
            if self._pool_threads is not None and self._pool_threads.is_worn_out():
                self._dismiss()
            threads_of_pool = self._pool_threads or self._start()
            if self._loops.is_timed:
                threads_of_pool.words[JOB_TIMES // 8] = table.clear_times()
                began = perf_counter()
                threads_of_pool.launch(threads_of_pool.shared.address, threads_of_pool.scratch[0].address, *table.job)
                ended = perf_counter()
                if table.names:
                    self._ticks.append(table.ticks(began, ended))
                return
            threads_of_pool.launch(threads_of_pool.shared.address, threads_of_pool.scratch[0].address, *table.job)

    def time_steps(self) -> None:
        """Record the times of steps from now on. Starts the workers again, with other loops."""
        with self._lock:
            if self._loops.is_timed or self._refusal:
                return
            self._loops = TimedLoops(WAIT_POLICY)
            self._compiler.address(self._loops)
            self._dismiss()

    def _dismiss(self) -> None:
        """Stop the workers, if any, and wait for them; the next step starts others."""
        if self._pool_threads is not None:
            self._pool_threads.stop()
            for worker in self._pool_threads.workers:
                worker.join()
            self._pool_threads = None

    def take_times(self) -> list[CallTime]:
        """Return the times of the steps since the last call."""
        taken, self._ticks = self._ticks, []
        return [time for ticks in taken for time in call_times(*ticks)]

    def _start(self) -> PoolThreads:
        threads_of_pool = PoolThreads(self._compiler, self._loops, self.threads)
        # The workers do not refer to the pool, so that it ends with its last reference
        weakref.finalize(self, threads_of_pool.stop)
        threads_of_pool.start()
        self._pool_threads = threads_of_pool
        return threads_of_pool

    def close(self) -> None:
        """Stop the workers and wait for them."""
        with self._lock:
            self._refusal = self._refusal or CLOSED_MESSAGE
            if self._pool_threads is None:
                return
            self._pool_threads.stop()
            for worker in self._pool_threads.workers:
                worker.join()

    def _forked(self) -> None:
        """Reset the pool in the child of a fork, which has none of its parent's threads."""
        self._lock = threading.Lock()  # one of them may hold it
        if self._pool_threads is not None:
            self._refusal = FORKED_MESSAGE


_POOLS: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


def _handle_fork() -> None:
    for thread_pool in _POOLS:
        thread_pool._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_handle_fork)
