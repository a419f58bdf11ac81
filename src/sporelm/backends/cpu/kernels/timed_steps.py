"""The loops of the thread team, with a clock: when each thread began and left each entry, and how long kernels took.

The code is that of `StepLoops` with some reads of the core's time-stamp counter in between, so a timed step is all but
a usual one. The counter counts at one rate on all cores; what a tick is worth follows from the step's own length.
"""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.jit.values import i64
from sporelm.backends.cpu.kernels.steps import ENTRY, JOB_ENTRIES, JOB_TABLE, JOB_TIMES, StepLoops

# a thread's record of an entry, in ticks; one that did not run holds zeros
RECORD = 32
ENTERED, LEFT, SPENT = 0, 8, 16
# before the records: when the step began and ended
HEAD = 64
STEP_BEGAN, STEP_ENDED = 0, 8


class TimedLoops(StepLoops):
    """Writes to the memory that JOB_TIMES names: HEAD bytes, then records [threads][entries]."""

    kind = "timed_steps"
    is_timed = True

    def _entered(self, k: Builder, team: Val, thread: Val, entry: Val) -> Val:
        index = k.distance(k.load_pointer(team, JOB_TABLE), entry) // ENTRY
        place = (thread * k.load(i64, team, JOB_ENTRIES) + index) * RECORD + HEAD
        times = k.at(k.load_pointer(team, JOB_TIMES), place)
        with k.when(k.load(i64, times, ENTERED).equals(0)):
            k.store(k.target.ticks(k), times, ENTERED)
        return times

    def _left(self, k: Builder, times: Any) -> None:
        k.store(k.target.ticks(k), times, LEFT)

    def _called(self, k: Builder, times: Any, link: Val, call: Callable[[], None]) -> None:
        before, record = k.target.ticks(k), k.at(times, link * RECORD)
        call()
        k.store(k.load(i64, record, SPENT) + (k.target.ticks(k) - before), record, SPENT)

    def _launched(self, k: Builder, team: Val, *, ended: bool) -> None:
        k.store(k.target.ticks(k), k.load_pointer(team, JOB_TIMES), STEP_ENDED if ended else STEP_BEGAN)
