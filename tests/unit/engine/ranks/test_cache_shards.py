"""Arrays of several ranks are joined to canonical ones, and sharded again."""

import numpy as np
import pytest

from sporelm.engine.ranks.cache_shards import CacheShard, full_shards, join_arrays, needs_rank, shard_arrays


@pytest.mark.parametrize("ranges", [[(0, 2), (2, 6)], [(0, 1), (1, 2), (2, 6)], [(0, 3), (0, 3), (3, 6), (3, 6)]])
def test_shards_are_joined_again(ranges: list[tuple[int, int]]) -> None:
    whole = [np.random.default_rng(0).random((3, 2, 6, 4)), np.arange(5.0)]
    shards = [[CacheShard(0, 2, *each), CacheShard(1)] for each in ranges]
    parts = [shard_arrays(each, whole) for each in shards]
    assert [part[0].shape[2] for part in parts] == [stop - start for start, stop in ranges]
    for array, expected in zip(join_arrays(shards, parts), whole, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_of_a_part_on_several_ranks_the_lowest_counts() -> None:
    shards = [[CacheShard(0, 0, 0, 2)], [CacheShard(0, 0, 0, 2)], [CacheShard(0, 0, 2, 3)]]
    (joined,) = join_arrays(shards, [[np.array([1, 1])], [np.array([2, 2])], [np.array([3])]])
    assert joined.tolist() == [1, 1, 3]
    assert [needs_rank(shards, rank) for rank in (1, 2)] == [False, True]


def test_stages_have_arrays_of_their_own() -> None:
    shards = [[CacheShard(0)], [CacheShard(1), CacheShard(2)]]
    arrays = join_arrays(shards, [[np.array([0])], [np.array([1]), np.array([2])]])
    assert [array.tolist() for array in arrays] == [[0], [1], [2]]
    assert needs_rank(shards, 1)
    assert not needs_rank([full_shards(3), full_shards(3)], 1)
