"""Memory placed once: offsets in one arena for values whose lives are known. Pure: no tensors, no devices."""

from collections.abc import Sequence
from dataclasses import dataclass

from sporelm.errors import GraphError

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of today's CPUs


@dataclass(frozen=True)
class Lifetime:
    """`nbytes` bytes that are needed from call number `first` to call number `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Placed:
    """The byte offset of each lifetime, in their order, and the size of the arena that holds them all."""

    offsets: tuple[int, ...]
    nbytes: int


def place(lifetimes: Sequence[Lifetime]) -> Placed:
    """Give each lifetime a byte offset so that those alive together never overlap.

    Largest first, each at the lowest aligned offset where it fits among its contemporaries: not optimal (that is
    NP-hard), close to the greatest sum of bytes alive at once in practice. Raises GraphError for a negative size or
    a life that ends before it starts.
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
        offsets[index] = _lowest_gap(taken, life.nbytes)
        end = max(end, offsets[index] + life.nbytes)
        for call in calls:
            alive.setdefault(call, []).append(index)
    return Placed(tuple(offsets), aligned(end))


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lowest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The lowest aligned offset where `nbytes` fit between ranges [start, stop) that are sorted by their starts."""
    offset = 0
    for start, stop in taken:
        if offset + nbytes <= start:
            break
        offset = max(offset, aligned(stop))
    return offset
