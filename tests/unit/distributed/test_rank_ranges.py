"""Ranges of ranks: whole units, in the proportion of their shares."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.distributed.rank_ranges import Ranges, divide, scale_ranges, share_units


def is_partition(ranges: Ranges) -> bool:
    """Whether no two ranks have an item in common, and none is left out between them."""
    return all(stop == start for (_, stop), (start, _) in pairwise(ranges))


shares = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(count=st.integers(1, 5000), shares=shares, granularity=st.integers(1, 70))
def test_ranges_cover_all_items_in_order(count: int, shares: list[int], granularity: int) -> None:
    found = divide(count, shares, granularity)
    pieces = -(-count // granularity)
    if pieces < len(shares):
        assert found is None
        return
    assert found is not None
    assert (found[0][0], found[-1][1]) == (0, count)
    assert is_partition(found)
    assert all(stop > start for start, stop in found)
    assert all(start % granularity == 0 for start, _ in found)
    for (start, stop), share in zip(found, shares, strict=True):
        wanted = pieces * share / sum(shares)
        # A rank that would have none takes a piece of its neighbours.
        assert (stop - start) / granularity <= wanted + 1 + len(shares)


@pytest.mark.parametrize(
    ("count", "shares", "granularity", "ranges"),
    [
        (8, (1, 1), 1, ((0, 4), (4, 8))),
        (8, (1, 1, 2), 1, ((0, 2), (2, 4), (4, 8))),
        (9, (1, 1), 4, ((0, 8), (8, 9))),
        (3, (1, 1, 2), 1, ((0, 1), (1, 2), (2, 3))),
        (2, (1, 1, 1), 1, None),
    ],
)
def test_proportions(count: int, shares: tuple[int, ...], granularity: int, ranges: object) -> None:
    assert divide(count, shares, granularity) == ranges


@given(units=st.integers(1, 8), parts=st.integers(1, 12), shares=st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_more_ranks_than_units_share_them(units: int, parts: int, shares: list[int]) -> None:
    if len(shares) < units:
        return
    found = share_units(units, parts, shares)
    if found is None:
        assert parts < len(shares)  # some unit has more ranks than parts
        return
    whole, inner = found
    assert (inner[0][0], inner[-1][1]) == (0, units * parts)
    assert is_partition(inner)
    for (unit, end), (start, stop) in zip(whole, inner, strict=True):
        assert end == unit + 1
        assert unit * parts <= start < stop <= end * parts, "a rank's parts belong to its unit"


def test_kv_heads_belong_to_neighbouring_ranks() -> None:
    assert share_units(2, 4, (1, 1, 1, 1)) == (((0, 1), (0, 1), (1, 2), (1, 2)), ((0, 2), (2, 4), (4, 6), (6, 8)))
    assert share_units(2, 4, (1, 1, 2)) == (((0, 1), (0, 1), (1, 2)), ((0, 2), (2, 4), (4, 8)))
    assert share_units(1, 2, (1, 1, 1)) is None
    assert scale_ranges(((0, 1), (1, 3)), 16) == ((0, 16), (16, 48))
