"""The canonical form of pages and states whose parts are on several ranks: the heads of all of them, in their order."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class CacheShard(NamedTuple):
    """One exported array of a rank, as a part of the canonical array of the whole model.

    number  of the canonical array
    axis   that is sharded; None: the rank has the whole array
    start  first index of the rank's part along the axis, and past its last
    stop   see `start`
    """

    number: int
    axis: int | None = None
    start: int = 0
    stop: int = 0


RankShards = Sequence[CacheShard]  # of the arrays that one rank exports, in its order


def full_shards(num_arrays: int) -> RankShards:
    """Return the shards of a rank that has all arrays whole."""
    return [CacheShard(number) for number in range(num_arrays)]


def join_arrays(shards: Sequence[RankShards], exports: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return canonical arrays, given those of each rank. Of a part that several ranks have, the lowest rank's counts.

    Rank 0's arrays may be missing parts that others have, so all ranks that have unique parts must be given.
    """
    holders: dict[int, list[tuple[CacheShard, NDArray[Any]]]] = {}
    for rank_shards, arrays in zip(shards, exports, strict=True):
        for shard, array in zip(rank_shards, arrays, strict=True):
            holders.setdefault(shard.number, []).append((shard, array))
    return [_join(holders[number]) for number in sorted(holders)]


def _join(parts: Sequence[tuple[CacheShard, NDArray[Any]]]) -> NDArray[Any]:
    shard, array = parts[0]
    if shard.axis is None:
        return array
    shape = list(array.shape)
    shape[shard.axis] = max(part.stop for part, _ in parts)
    joined = np.empty(shape, array.dtype)
    for part, values in reversed(parts):  # the lowest rank writes last
        joined[_slice(part, joined.ndim)] = values
    return joined


def shard_arrays(shards: RankShards, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the parts of canonical arrays that a rank imports, as views."""
    return [
        arrays[shard.number] if shard.axis is None else arrays[shard.number][_slice(shard, arrays[shard.number].ndim)]
        for shard in shards
    ]


def needs_rank(shards: Sequence[RankShards], rank: int) -> bool:
    """Return whether a rank has a part that no lower rank has."""
    lower = {shard for rank_shards in shards[:rank] for shard in rank_shards}
    whole = {shard.number for shard in lower if shard.axis is None}
    return any(shard not in lower and shard.number not in whole for shard in shards[rank])


def _slice(shard: CacheShard, num_axes: int) -> tuple[slice, ...]:
    assert shard.axis is not None
    return tuple(slice(shard.start, shard.stop) if axis == shard.axis else slice(None) for axis in range(num_axes))
