"""NUMA nodes: the sockets of a machine, or parts of them, with cores and memory of their own; and the cores of ranks.

A worker's threads and its weights should be on one node. Memory is placed on the node of the thread that first writes
to it, so a worker whose threads are pinned before it loads the weights has them nearby.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

MAX_CORES = 1 << 16


@dataclass(frozen=True)
class NumaNode:
    """A node: its number, its cores, and the bytes of its memory (0: unknown)."""

    number: int
    cores: tuple[int, ...]
    memory_bytes: int = 0


def read_numa_nodes(root: Path = Path("/")) -> list[NumaNode]:
    """Return the nodes that have cores; empty where the system does not tell (Linux only)."""
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node*"):
        if not re.fullmatch(r"node[0-9]{1,6}", folder.name):
            continue
        cores = parse_core_list(_read_text(folder / "cpulist"))
        if cores:
            total = re.search(r"MemTotal:\s+(\d+) kB", _read_text(folder / "meminfo"))
            nodes.append(NumaNode(int(folder.name[4:]), cores, int(total[1]) * 1024 if total else 0))
    return sorted(nodes, key=lambda node: node.number)


def parse_core_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as "0-3,8"; empty for a text of another form."""
    cores = set[int]()
    for part in text.strip().split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if found is None or int(found[2] or found[1]) >= MAX_CORES:
            return ()
        cores.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cores))


def format_core_list(cores: Sequence[int]) -> str:
    """Return numbers as a list such as "0-3,8"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1][1:] = [core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)


def usable_core_numbers() -> tuple[int, ...]:
    """Return the cores that the affinity of this thread allows; empty where the system has none."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def assign_cores(num_ranks: int, num_threads: int, nodes: Sequence[NumaNode], usable: Sequence[int]) -> list[list[int]]:
    """Return the cores of each rank, neighbours on one node as far as possible; empty lists: no pinning.

    Ranks are pinned where each has a core for each of its threads: `num_threads` are those of all ranks together.
    """
    allowed = set(usable)
    places = [sorted(allowed & set(node.cores)) for node in nodes] or [sorted(allowed)]
    known = set().union(*places)
    places.append(sorted(allowed - known))
    places = [place for place in places if place]
    unpinned: list[list[int]] = [[] for _ in range(num_ranks)]
    if num_ranks < 2 or not num_ranks <= num_threads <= len(allowed):
        return unpinned
    counts = share_threads(num_threads, num_ranks)
    if 1 < len(places) <= num_ranks:
        assigned: list[list[int]] = []
        for index, place in enumerate(places):
            first, end = (num_ranks * i // len(places) for i in (index, index + 1))
            if len(place) < sum(counts[first:end]):
                return _assign_in_order(counts, [core for place in places for core in place])
            # All cores of a node, divided: its ranks may use more threads for prompts.
            share = len(place) // (end - first)
            assigned += [place[i * share : (i + 1) * share] for i in range(end - first)]
        if all(len(cores) >= count for cores, count in zip(assigned, counts, strict=True)):
            return assigned
    return _assign_in_order(counts, [core for place in places for core in place])


def _assign_in_order(counts: Sequence[int], cores: Sequence[int]) -> list[list[int]]:
    assigned, begin = [], 0
    for count in counts:
        assigned.append(list(cores[begin : begin + count]))
        begin += count
    return assigned


def share_threads(num_threads: int, num_ranks: int) -> list[int]:
    """Return the threads of each rank: equal shares of all threads, one at least."""
    return [max(1, num_threads * (i + 1) // num_ranks - num_threads * i // num_ranks) for i in range(num_ranks)]


def pin_to(cores: Sequence[int]) -> None:
    """Let this thread, and threads that it starts from now on, run on these cores only. Does nothing without any."""
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


@runtime_checkable
class ThreadStarter(Protocol):
    """An optional part of a back-end: threads of its own that compute."""

    def start_threads(self) -> None:
        """Start the threads now, on the cores of the calling thread. Does nothing if they run."""


@contextmanager
def pinned_to(cores: Sequence[int]) -> Iterator[None]:
    """Pin this thread for a block: threads that start in the block stay pinned, and memory is placed near them."""
    before = usable_core_numbers()
    pin_to(cores)
    try:
        yield
    finally:
        if cores:
            pin_to(before)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return ""
