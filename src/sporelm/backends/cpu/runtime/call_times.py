"""Times of calls, from the output of `TimedLoops`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.cpu.runtime.timed_loops import ENTERED, LEFT, SPENT, STEP_BEGAN, STEP_ENDED
from sporelm.backends.protocol import CallTime
from sporelm.ops import Call


class StepTicks(NamedTuple):
    """The output of a timed step, and its entries; see `call_times`."""

    head: NDArray[np.int64]
    records: NDArray[np.int64]
    chains: Sequence[int]
    names: Sequence[tuple[Call, str]]
    began: float
    ended: float


def call_times(
    head: NDArray[np.int64],
    records: NDArray[np.int64],
    chains: Sequence[int],
    names: Sequence[tuple[Call, str]],
    began: float,
    ended: float,
) -> list[CallTime]:
    """Return a step's times, thread by thread; none if the CPU has no counter.

    head, records   ticks: of the step, and [threads, entries, fields] of the threads at the entries
    chains          the number of entries chained to each without a barrier: a thread runs them chunk by chunk, so their
                    times are laid one after the other from the start of the first
    began, ended    seconds of perf_counter that enclose the step's ticks

    Waiting at barriers does not count as an entry's time.
    """
    first, last = int(head[STEP_BEGAN // 8]), int(head[STEP_ENDED // 8])
    if last <= first:
        return []
    tick = (ended - began) / (last - first)
    found: list[CallTime] = []
    for thread, lines in enumerate(records.tolist()):
        at = 0
        while at < len(chains):
            links = range(at, at + chains[at] + 1)
            entered, left = lines[at][ENTERED // 8], lines[at][LEFT // 8]
            moment = began + (entered - first) * tick
            for link in links:
                spent = lines[link][SPENT // 8]
                if spent > 0:
                    seconds = (spent if len(links) > 1 else left - entered) * tick
                    found.append(CallTime(*names[link], thread, moment, seconds))
                    moment += seconds
            at = links.stop
    return found
