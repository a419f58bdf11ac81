"""The loops of the thread pool with a clock: when each thread began and left each entry, and the duration of kernels.

The code is that of `StepLoops` with some reads of the core's time-stamp counter in between, so a timed step costs about
the same. The counter counts at one rate on all cores; the length of a tick follows from the duration of the step.
"""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.jit.ssa_values import i64
from sporelm.backends.cpu.runtime.step_loops import ENTRY, JOB_ENTRIES, JOB_TABLE, JOB_TIMES, StepLoops

# a thread's record of an entry, in ticks; zeros if it did not run
RECORD = 32
ENTERED, LEFT, SPENT = 0, 8, 16
# before the records: the start and the end of the step
HEAD = 64
STEP_BEGAN, STEP_ENDED = 0, 8


class TimedLoops(StepLoops):
    """Writes to the memory that JOB_TIMES names: HEAD bytes, then records [threads][entries]."""

    kind = "timed_steps"
    is_timed = True

    def _record_chunk_start(self, k: Builder, pool: Val, thread: Val, entry: Val) -> Val:
        index = k.distance(k.load_pointer(pool, JOB_TABLE), entry) // ENTRY
        place = (thread * k.load(i64, pool, JOB_ENTRIES) + index) * RECORD + HEAD
        times = k.at(k.load_pointer(pool, JOB_TIMES), place)
        with k.when(k.load(i64, times, ENTERED).equals(0)):
            k.store(k.target.ticks(k), times, ENTERED)
        return times

    def _record_chunk(self, k: Builder, times: Any) -> None:
        k.store(k.target.ticks(k), times, LEFT)

    def _record_call(self, k: Builder, times: Any, link: Val, call: Callable[[], None]) -> None:
        before, record = k.target.ticks(k), k.at(times, link * RECORD)
        call()
        k.store(k.load(i64, record, SPENT) + (k.target.ticks(k) - before), record, SPENT)

    def _record_launch(self, k: Builder, pool: Val, *, ended: bool) -> None:
        k.store(k.target.ticks(k), k.load_pointer(pool, JOB_TIMES), STEP_ENDED if ended else STEP_BEGAN)
