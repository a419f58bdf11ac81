"""Memory planning: offsets in one arena for values with known lifetimes. Pure functions: no tensors, no devices."""

from collections.abc import Sequence
from dataclasses import dataclass

from sporelm.errors import GraphError

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of current CPUs


@dataclass(frozen=True)
class Lifetime:
    """`nbytes` bytes that are needed from call number `first` to call number `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaOffsets:
    """The byte offset of each lifetime, in their order, and the size of the arena."""

    offsets: tuple[int, ...]
    nbytes: int


def plan_offsets(lifetimes: Sequence[Lifetime]) -> ArenaOffsets:
    """Give each lifetime a byte offset such that values alive at the same time never overlap.

    Greedy by size: the largest first, each at the lowest aligned offset that is free during its lifetime. This is not
    optimal (the problem is NP-hard), but in practice close to the greatest sum of bytes alive at once. Raises
    GraphError for a negative size or a lifetime that ends before it starts.
    """
    offsets = [0] * len(lifetimes)
    alive: dict[int, list[int]] = {}  # call number -> indices of the lifetimes placed so far that include it
    order = sorted(range(len(lifetimes)), key=lambda index: (-lifetimes[index].nbytes, lifetimes[index].first, index))
    end = 0
    for index in order:
        life = lifetimes[index]
        if life.nbytes < 0 or life.last < life.first:
            raise GraphError(f"{life} has a negative size or ends before it starts")
        if life.nbytes == 0:
            continue
        calls = range(life.first, life.last + 1)
        contemporaries = {other for call in calls for other in alive.get(call, ())}
        taken = sorted((offsets[other], offsets[other] + lifetimes[other].nbytes) for other in contemporaries)
        offsets[index] = _find_lowest_gap(taken, life.nbytes)
        end = max(end, offsets[index] + life.nbytes)
        for call in calls:
            alive.setdefault(call, []).append(index)
    return ArenaOffsets(tuple(offsets), align(end))


def align(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _find_lowest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """Return the lowest aligned offset where `nbytes` fit between ranges [start, stop) that are sorted by start."""
    offset = 0
    for start, stop in taken:
        if offset + nbytes <= start:
            break
        offset = max(offset, align(stop))
    return offset
