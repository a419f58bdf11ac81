"""The thread team: workers that spin for the next step, then park; one native call a thread a step."""

import ctypes
import sys
import threading
from typing import Any

import numpy as np

from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.kernels.steps import (
    ASLEEP,
    ENTRY,
    JOB_COUNTERS,
    JOB_ENTRIES,
    JOB_TABLE,
    JOB_THREADS,
    LINE,
    PARKED,
    STOP,
    WAKE,
    YIELD,
    StepLoops,
)
from sporelm.backends.cpu.memory import Region
from sporelm.errors import ContextError

SPINS = 4000  # turns of the barrier's loop before it yields its core
PATIENCE = 30000  # turns before an idle worker parks
SCRATCH = 4 << 20  # bytes of scratch memory a thread; untouched pages cost nothing


def _yield_address() -> int:
    """Address of the system call that gives the core to another thread."""
    if sys.platform == "win32":
        function: Any = ctypes.windll.kernel32.SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Table:
    """The entries of a step, in native form."""

    def __init__(self, entries: np.ndarray, threads: int) -> None:
        self.entries = np.ascontiguousarray(entries, np.int64)
        self.count = len(entries)
        self.counters = Region(max(1, self.count) * threads * LINE)


class Team:
    """`threads` threads, the caller's among them. Steps run one at a time."""

    def __init__(self, compiler: Compiler, threads: int) -> None:
        self.threads = threads
        loops = StepLoops(SPINS, PATIENCE)
        void, integer = ctypes.c_void_p, ctypes.c_int64
        self._run = ctypes.CFUNCTYPE(None, void, integer, void)(compiler.address(loops))
        self._serve = ctypes.CFUNCTYPE(None, void, integer, void, void)(compiler.symbol(f"{loops.name}_serve"))
        self._launch = ctypes.CFUNCTYPE(None, void, void)(compiler.symbol(f"{loops.name}_launch"))
        self._shared = Region(PARKED + threads * LINE)
        self._words = self._shared.array.view(np.int64)
        self._words[YIELD // 8] = _yield_address()
        self._words[JOB_THREADS // 8] = threads
        self._scratch = [Region(SCRATCH) for _ in range(threads)]
        self._wake = [threading.Semaphore(0) for _ in range(threads)]
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        self._closed = False

    def _start(self) -> None:
        for number in range(1, self.threads):
            worker = threading.Thread(target=self._work, args=(number,), name=f"sporelm-{number}", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _work(self, number: int) -> None:
        seen = ctypes.c_int64(0)
        scratch, team = self._scratch[number].address, self._shared.address
        while True:
            self._serve(team, number, scratch, ctypes.addressof(seen))
            if self._words[STOP // 8]:
                return
            self._wake[number].acquire()

    def run(self, table: Table) -> None:
        """Run a step to its end."""
        with self._lock:
            if self._closed:
                raise ContextError("the thread team is closed; open a new back-end")
            if not self._workers and self.threads > 1:
                self._start()
            words = self._words
            words[JOB_TABLE // 8] = table.entries.ctypes.data
            words[JOB_ENTRIES // 8] = table.count
            words[JOB_COUNTERS // 8] = table.counters.address
            self._launch(self._shared.address, self._scratch[0].address)
            if words[ASLEEP // 8]:
                self._wake_sleepers()
                self._run(self._shared.address, 0, self._scratch[0].address)

    def _wake_sleepers(self) -> None:
        for number in range(1, self.threads):
            wake = (PARKED + number * LINE + WAKE) // 8
            if self._words[wake]:
                self._words[wake] = 0
                self._wake[number].release()

    def close(self) -> None:
        """Stop the workers and wait for them."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._words[STOP // 8] = 1
            empty = Table(np.zeros((0, ENTRY // 8), np.int64), self.threads)
            self._words[JOB_TABLE // 8], self._words[JOB_ENTRIES // 8] = empty.entries.ctypes.data, 0
            if self._workers:
                self._launch(self._shared.address, self._scratch[0].address)
                self._wake_sleepers()
            for worker in self._workers:
                worker.join()
