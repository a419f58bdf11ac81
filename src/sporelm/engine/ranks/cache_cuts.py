"""The canonical form of pages and states whose parts are on several ranks: the heads of all of them, in their order."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class CacheCut(NamedTuple):
    """One exported array of a rank, as a part of the canonical array of the whole model.

    number  of the canonical array
    axis   that is cut; None: the rank has the whole array
    start  first index of the rank's part along the axis, and past its last
    stop   see `start`
    """

    number: int
    axis: int | None = None
    start: int = 0
    stop: int = 0


RankCuts = Sequence[CacheCut]  # of the arrays that one rank exports, in its order


def uncut(num_arrays: int) -> RankCuts:
    """Return the cuts of a rank that has all arrays as a whole."""
    return [CacheCut(number) for number in range(num_arrays)]


def join_arrays(cuts: Sequence[RankCuts], exports: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return canonical arrays, given those of each rank. Of a part that several ranks have, the lowest rank's counts.

    Rank 0's arrays may be missing parts that others have, so all ranks that have unique parts must be given.
    """
    holders: dict[int, list[tuple[CacheCut, NDArray[Any]]]] = {}
    for rank_cuts, arrays in zip(cuts, exports, strict=True):
        for cut, array in zip(rank_cuts, arrays, strict=True):
            holders.setdefault(cut.number, []).append((cut, array))
    return [_join(holders[number]) for number in sorted(holders)]


def _join(parts: Sequence[tuple[CacheCut, NDArray[Any]]]) -> NDArray[Any]:
    cut, array = parts[0]
    if cut.axis is None:
        return array
    shape = list(array.shape)
    shape[cut.axis] = max(part.stop for part, _ in parts)
    joined = np.empty(shape, array.dtype)
    for part, values in reversed(parts):  # the lowest rank writes last
        joined[_slice(part, joined.ndim)] = values
    return joined


def cut_arrays(cuts: RankCuts, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the parts of canonical arrays that a rank imports, as views."""
    return [
        arrays[cut.number] if cut.axis is None else arrays[cut.number][_slice(cut, arrays[cut.number].ndim)]
        for cut in cuts
    ]


def needs_rank(cuts: Sequence[RankCuts], rank: int) -> bool:
    """Return whether a rank has a part that no lower rank has."""
    lower = {cut for rank_cuts in cuts[:rank] for cut in rank_cuts}
    whole = {cut.number for cut in lower if cut.axis is None}
    return any(cut not in lower and cut.number not in whole for cut in cuts[rank])


def _slice(cut: CacheCut, num_axes: int) -> tuple[slice, ...]:
    assert cut.axis is not None
    return tuple(slice(cut.start, cut.stop) if axis == cut.axis else slice(None) for axis in range(num_axes))
