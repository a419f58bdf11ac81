"""The range of a dimension that each rank has: whole units, in the proportion of the ranks' shares."""

from collections.abc import Sequence
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]  # (start, stop) of each rank, in order


def divide(count: int, shares: Sequence[int], granularity: int = 1) -> Ranges | None:
    """Return ranges that cover `count` items in order, in the proportion of `shares`; None if a rank would have none.

    All boundaries but the last are multiples of `granularity`.
    """
    pieces, total = -(-count // granularity), sum(shares)
    if pieces < len(shares):
        return None
    ends, so_far = [0], 0
    for rank, share in enumerate(shares):
        so_far += share
        left = len(shares) - rank - 1  # ranks that follow need a piece each
        end = round(pieces * so_far / total)
        ends.append(min(max(end, ends[-1] + 1), pieces - left))
    return tuple((start * granularity, min(stop * granularity, count)) for start, stop in pairwise(ends))


def share_units(units: int, parts: int, shares: Sequence[int]) -> tuple[Ranges, Ranges] | None:
    """Return for more ranks than units the units that each rank needs, and its parts of them: `parts` in each unit.

    Each unit goes to consecutive ranks, which divide its parts: KV heads and their query heads. None if a rank would
    have no part.
    """
    owners = _spread_ranks(units, shares)
    whole, inner = list[tuple[int, int]](), list[tuple[int, int]]()
    for unit, (first, end) in enumerate(owners):
        divided = divide(parts, shares[first:end])
        if divided is None:
            return None
        whole += [(unit, unit + 1)] * (end - first)
        inner += [(unit * parts + start, unit * parts + stop) for start, stop in divided]
    return tuple(whole), tuple(inner)


def _spread_ranks(units: int, shares: Sequence[int]) -> Ranges:
    """Return the ranks of each unit, consecutive ones, with about equal sums of shares."""
    total, ends, so_far = sum(shares), [0], 0
    for rank, share in enumerate(shares):
        so_far += share
        unit, left = len(ends), len(shares) - rank - 1
        needed = units - unit  # units that follow need a rank each
        if unit < units and (so_far * units >= unit * total or left == needed):
            ends.append(rank + 1)
    return tuple(pairwise([*ends, len(shares)]))


def scale_ranges(ranges: Ranges, factor: int) -> Ranges:
    """Return the ranges in a unit that is `factor` times smaller."""
    return tuple((start * factor, stop * factor) for start, stop in ranges)
