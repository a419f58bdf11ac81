"""What `TimedLoops` wrote, as times of calls."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.backend import CallTime
from sporelm.backends.cpu.kernels.timed_steps import ENTERED, LEFT, SPENT, STEP_BEGAN, STEP_ENDED
from sporelm.ops import Call


class Ticks(NamedTuple):
    """What a step wrote, and of what; see `call_times`."""

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
    """A step's times, thread by thread; none where the CPU has no counter.

    head, records   ticks: of the step, and [threads, entries, fields] of the threads at the entries
    chains          how many entries each is followed by without a barrier: a thread takes them chunk by chunk, so they
                    are laid one after the other from when it began the first
    began, ended    seconds of perf_counter in which the step's ticks lie

    Waiting at barriers is no entry's time.
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
