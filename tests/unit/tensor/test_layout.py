"""Layout transforms: the worked examples of the reference, and numpy's own strides as the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.errors import OpError
from sporelm.tensor.layout import Layout

BOX = Layout((2, 3, 4), (12, 4, 1))


def view(layout: Layout, memory: np.ndarray) -> np.ndarray:
    """The elements a layout sees in 1-D memory, by numpy's strides."""
    step = memory.itemsize
    lowest = layout.offset + sum(min(0, (n - 1) * s) for n, s in zip(layout.shape, layout.strides, strict=True))
    highest = layout.offset + sum(max(0, (n - 1) * s) for n, s in zip(layout.shape, layout.strides, strict=True))
    assert layout.size == 0 or (lowest >= 0 and highest < memory.size)  # never outside the memory
    start = memory[layout.offset :] if layout.size else memory[:0]
    return np.lib.stride_tricks.as_strided(start, layout.shape, [s * step for s in layout.strides], writeable=False)


def layout_of(array: np.ndarray, memory: np.ndarray) -> Layout:
    address = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return Layout(array.shape, tuple(s // array.itemsize for s in array.strides), address // array.itemsize)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Layout, np.ndarray, np.ndarray]:
    """A layout, the numpy array it describes, and the memory of both: permuted, stepped and reversed at random."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    memory = np.arange(int(np.prod(shape)))
    array = memory.reshape(shape).transpose(draw(st.permutations(range(len(shape)))))
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, -1, 2, -2]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    return layout_of(array, memory), array, memory


def test_reference_examples() -> None:
    assert BOX.transpose([1, 0]) == Layout((3, 2, 4), (4, 12, 1))
    assert BOX.index(1, 2) == Layout((2, 4), (12, 1), 8)
    assert BOX.slice(1, 2, -1, 2) == Layout((2, 2, 4), (12, -4, 1), 8)
    assert Layout((2, 3, 6), (18, 6, 1)).tile_be(2, [2, 3]) == Layout((2, 3, 2, 3), (18, 6, 3, 1))
    assert Layout((2, 3, 6), (18, 6, 1)).tile_le(2, [2, 3]) == Layout((2, 3, 2, 3), (18, 6, 1, 2))
    assert Layout((1, 5, 2), (10, 2, 1)).broadcast(0, 10) == Layout((10, 5, 2), (0, 2, 1))
    assert BOX.merge(0, 3) == Layout((24,), (1,))
    assert BOX.split(2, [1, 3]) == (Layout((2, 3, 1), (12, 4, 1)), Layout((2, 3, 3), (12, 4, 1), 1))


def test_contiguous() -> None:
    assert Layout.contiguous([2, 3, 4]) == BOX
    assert Layout.contiguous([]) == Layout((), ())
    assert Layout.contiguous([]).size == 1
    assert Layout.contiguous([]).is_contiguous
    assert Layout.contiguous([7]) == Layout((7,), (1,))


def test_transpose_of_a_subset_leaves_the_others_in_place() -> None:
    assert BOX.transpose([2, 0]) == Layout((4, 3, 2), (1, 4, 12))
    assert BOX.transpose([1]) == BOX


def test_dense_but_not_contiguous() -> None:
    assert BOX.is_dense
    assert BOX.is_contiguous
    turned = BOX.transpose([2, 1, 0])
    assert turned.is_dense
    assert not turned.is_contiguous
    backwards = BOX.slice(2, 3, -1, 4)
    assert backwards.is_dense
    assert not backwards.is_contiguous
    assert not BOX.slice(2, 0, 1, 3).is_dense
    assert not Layout((4,), (0,)).is_dense


def test_merge_refuses_what_strides_do_not_allow() -> None:
    assert BOX.transpose([1, 0]).merge(0, 2) is None
    assert BOX.slice(2, 0, 1, 3).merge(1, 3) is None
    assert BOX.slice(2, 0, 1, 3).merge(0, 2) == Layout((6, 3), (4, 1))
    assert Layout((3, 4), (0, 0)).merge(0, 2) == Layout((12,), (0,))


@given(arrays(), st.data())
def test_transpose_equals_numpy(made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    layout, array, memory = made
    perm = data.draw(st.permutations(range(array.ndim)))
    assert np.array_equal(view(layout.transpose(perm), memory), array.transpose(perm))


@given(arrays(), st.data())
def test_index_equals_numpy(made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    layout, array, memory = made
    axis = data.draw(st.integers(0, array.ndim - 1))
    i = data.draw(st.integers(0, array.shape[axis] - 1))
    assert np.array_equal(view(layout.index(axis, i), memory), array.take(i, axis))


@given(arrays(), st.data())
def test_slice_equals_numpy(made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    layout, array, memory = made
    axis = data.draw(st.integers(0, array.ndim - 1))
    taken = data.draw(st.slices(array.shape[axis]))
    positions = range(array.shape[axis])[taken]
    got = layout.slice(axis, positions.start if positions else 0, positions.step, len(positions))
    assert np.array_equal(view(got, memory), array[(slice(None),) * axis + (taken,)])


@given(arrays(), st.data())
def test_tile_equals_reshape(made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    layout, array, memory = made
    axis = data.draw(st.integers(0, array.ndim - 1))
    length = array.shape[axis]
    first = data.draw(st.sampled_from([n for n in range(1, length + 1) if length % n == 0]))
    parts = [first, length // first]
    shape = (*array.shape[:axis], *parts, *array.shape[axis + 1 :])
    assert np.array_equal(view(layout.tile_be(axis, parts), memory), array.reshape(shape))
    swapped = (*array.shape[:axis], *parts[::-1], *array.shape[axis + 1 :])
    expected = array.reshape(swapped).swapaxes(axis, axis + 1)
    assert np.array_equal(view(layout.tile_le(axis, parts), memory), expected)


@given(arrays(), st.data())
def test_broadcast_equals_repeat(made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    layout, array, memory = made
    axis = data.draw(st.integers(0, array.ndim - 1))
    times = data.draw(st.integers(0, 4))
    single = layout.slice(axis, 0, 1, 1)
    expected = array.take([0], axis).repeat(times, axis)
    assert np.array_equal(view(single.broadcast(axis, times), memory), expected)


@given(arrays(), st.data())
def test_merge_is_a_view_exactly_when_numpy_can(
    made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    layout, array, memory = made
    start = data.draw(st.integers(0, array.ndim - 1))
    end = data.draw(st.integers(start + 1, array.ndim))
    expected = array.reshape((*array.shape[:start], -1, *array.shape[end:]))
    merged = layout.merge(start, end)
    alone = array[tuple(slice(None) if start <= axis < end else 0 for axis in range(array.ndim))]
    assert (merged is not None) == np.shares_memory(alone.reshape(-1), memory)
    if merged is not None:
        assert np.array_equal(view(merged, memory), expected)


@given(arrays(), st.data())
def test_split_equals_numpy(made: tuple[Layout, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    layout, array, memory = made
    axis = data.draw(st.integers(0, array.ndim - 1))
    cut = data.draw(st.integers(0, array.shape[axis]))
    pieces = layout.split(axis, [cut, array.shape[axis] - cut])
    for piece, expected in zip(pieces, np.split(array, [cut], axis), strict=True):
        assert np.array_equal(view(piece, memory), expected)


@given(arrays())
def test_flags_equal_numpy(made: tuple[Layout, np.ndarray, np.ndarray]) -> None:
    layout, array, memory = made
    assert layout.is_contiguous == array.flags.c_contiguous
    addresses = np.sort(view(layout, memory).ravel())
    assert layout.is_dense == bool((np.diff(addresses) == 1).all())
    assert layout.size == array.size
    assert layout.rank == array.ndim


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: BOX.index(3, 0), "axis 3 is not one of the 3 axes"),
        (lambda: BOX.index(-1, 0), "axis -1"),
        (lambda: BOX.index(1, 3), "index 3 is outside axis 1 of length 3"),
        (lambda: BOX.slice(1, 2, 1, 2), "leaves axis 1 of length 3"),
        (lambda: BOX.slice(1, 0, -1, 2), "leaves axis 1"),
        (lambda: BOX.slice(1, 0, 1, -1), "length -1"),
        (lambda: BOX.tile_be(2, [2, 3]), "does not multiply"),
        (lambda: BOX.tile_le(2, []), "does not multiply"),
        (lambda: BOX.broadcast(1, 2), "needs an axis of length 1"),
        (lambda: BOX.merge(1, 1), "is empty"),
        (lambda: BOX.merge(0, 4), "leaves the 3 axes"),
        (lambda: BOX.split(2, [1, 2]), "do not add up"),
        (lambda: BOX.transpose([0, 0]), "twice"),
        (lambda: Layout((2,), (1, 1)), "1 axes has 2 strides"),
        (lambda: Layout((-2,), (1,)), "negative length"),
    ],
)
def test_errors_name_the_numbers(change: object, message: str) -> None:
    with pytest.raises(OpError, match=message):
        change()  # type: ignore[operator]
