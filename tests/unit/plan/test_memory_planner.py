"""Memory placement: values alive together never overlap, and the arena is no larger than it must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.errors import GraphError
from sporelm.plan import ALIGNMENT, Lifetime, plan_offsets

LIVES = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 5000),
    st.integers(-1, 30),
    st.integers(0, 12),
)


@given(st.lists(LIVES, max_size=40))
def test_values_alive_together_never_overlap(lives: list[Lifetime]) -> None:
    placed = plan_offsets(lives)
    spans = [(life, offset) for life, offset in zip(lives, placed.offsets, strict=True) if life.nbytes]
    for index, (one, start) in enumerate(spans):
        for other, begin in spans[:index]:
            together = one.first <= other.last and other.first <= one.last
            assert not together or start + one.nbytes <= begin or begin + other.nbytes <= start


@given(st.lists(LIVES, max_size=40))
def test_offsets_are_aligned_and_inside(lives: list[Lifetime]) -> None:
    placed = plan_offsets(lives)
    assert placed.nbytes % ALIGNMENT == 0
    for life, offset in zip(lives, placed.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= placed.nbytes - life.nbytes


@given(st.lists(LIVES, max_size=40))
def test_arena_lies_between_the_bounds(lives: list[Lifetime]) -> None:
    def padded(life: Lifetime) -> int:
        return -(-life.nbytes // ALIGNMENT) * ALIGNMENT

    at_once = [sum(padded(life) for life in lives if life.first <= call <= life.last) for call in range(-1, 45)]
    assert max(at_once) <= plan_offsets(lives).nbytes <= sum(map(padded, lives))


def test_memory_is_used_again() -> None:
    chain = [Lifetime(1000, call, call + 1) for call in range(50)]
    assert plan_offsets(chain).nbytes == 2 * 1024


def test_order_does_not_change_the_size_of_equal_values() -> None:
    lives = [Lifetime(64, 0, 9), Lifetime(64, 3, 4), Lifetime(64, 5, 9), Lifetime(64, 0, 2)]
    assert plan_offsets(lives).nbytes == plan_offsets(lives[::-1]).nbytes == 128


def test_nothing_takes_nothing() -> None:
    assert plan_offsets([]).nbytes == 0
    assert plan_offsets([Lifetime(0, 0, 3)]).offsets == (0,)


@pytest.mark.parametrize("life", [Lifetime(-1, 0, 1), Lifetime(8, 2, 1)])
def test_impossible_lives_are_refused(life: Lifetime) -> None:
    with pytest.raises(GraphError, match="negative size or ends before"):
        plan_offsets([life])
