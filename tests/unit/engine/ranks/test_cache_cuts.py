"""Arrays of several ranks are joined to canonical ones, and cut again."""

import numpy as np
import pytest

from sporelm.engine.ranks.cache_cuts import CacheCut, cut_arrays, join_arrays, needs_rank, uncut


@pytest.mark.parametrize("ranges", [[(0, 2), (2, 6)], [(0, 1), (1, 2), (2, 6)], [(0, 3), (0, 3), (3, 6), (3, 6)]])
def test_cuts_are_joined_again(ranges: list[tuple[int, int]]) -> None:
    whole = [np.random.default_rng(0).random((3, 2, 6, 4)), np.arange(5.0)]
    cuts = [[CacheCut(0, 2, *each), CacheCut(1)] for each in ranges]
    parts = [cut_arrays(each, whole) for each in cuts]
    assert [part[0].shape[2] for part in parts] == [stop - start for start, stop in ranges]
    for array, expected in zip(join_arrays(cuts, parts), whole, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_of_a_part_on_several_ranks_the_lowest_counts() -> None:
    cuts = [[CacheCut(0, 0, 0, 2)], [CacheCut(0, 0, 0, 2)], [CacheCut(0, 0, 2, 3)]]
    (joined,) = join_arrays(cuts, [[np.array([1, 1])], [np.array([2, 2])], [np.array([3])]])
    assert joined.tolist() == [1, 1, 3]
    assert [needs_rank(cuts, rank) for rank in (1, 2)] == [False, True]


def test_stages_have_arrays_of_their_own() -> None:
    cuts = [[CacheCut(0)], [CacheCut(1), CacheCut(2)]]
    arrays = join_arrays(cuts, [[np.array([0])], [np.array([1]), np.array([2])]])
    assert [array.tolist() for array in arrays] == [[0], [1], [2]]
    assert needs_rank(cuts, 1)
    assert not needs_rank([uncut(3), uncut(3)], 1)
