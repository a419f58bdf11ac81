"""The selective scan: the arguments it rejects, and the values of its reference at the limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import OpError

BACKEND = ReferenceBackend()


def f32(*shape: int) -> Any:
    return BACKEND.tensor(np.zeros(shape, np.float32))


def i32(*numbers: int) -> Any:
    return BACKEND.tensor(np.array(numbers, np.int32))


def scanned(whose: Any = None, **given: Any) -> Any:
    """Four rows of five channels, three numbers each."""
    shapes = {"x": (4, 5), "dt": (4, 5), "write": (4, 3), "read": (4, 3), "decay": (3, 5), "skip": (5,)}
    values = [given.get(name) or f32(*shape) for name, shape in shapes.items()]
    return ops.selective_scan(*values, given.get("state") or f32(2, 3, 5), *(whose or (i32(0, 4), i32(4), i32(1))))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a state's channels": (lambda: scanned(state=f32(2, 3, 6)), "must have a column for each of x"),
    "time steps": (lambda: scanned(dt=f32(4, 3)), "must be .*4, 5"),
    "what writes": (lambda: scanned(write=f32(4, 2)), "must be .*4, 3"),
    "what reads": (lambda: scanned(read=f32(3, 3)), "must be .*4, 3"),
    "rates": (lambda: scanned(decay=f32(5, 3)), "must be .*3, 5"),
    "what skips": (lambda: scanned(skip=f32(3)), "one element a column of x"),
    "rows without a sequence": (lambda: scanned((i32(0, 3), i32(4), i32(1))), "rise from 0 to the 4 rows"),
    "no such slot": (lambda: scanned((i32(0, 4), i32(4), i32(2))), "between 0 and 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(OpError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_each_number_of_a_channel_fades_at_its_own_rate() -> None:
    """With time steps of one: y = sum of x by exp(-rate * distance) of each rate, plus what skips."""
    x, one = np.array([[2.0], [3.0]], np.float32), np.log(np.float32(np.e) - 1)
    given = [x, np.full((2, 1), one, np.float32), np.ones((2, 2), np.float32), np.array([[1, 1], [1, 10]], np.float32)]
    given += [np.array([[-1.0], [-2.0]], np.float32), np.array([0.5], np.float32)]
    state = BACKEND.tensor(np.ones((1, 2, 1), np.float32))
    found = ops.selective_scan(*map(BACKEND.tensor, given), state, i32(0, 2), i32(2), i32(0)).numpy()
    kept = 3 + 2 * np.exp([-1.0, -2.0])
    assert np.allclose(found[:, 0], [2 + 2 + 1, kept[0] + 10 * kept[1] + 1.5], atol=1e-5)
    assert np.allclose(state.numpy()[0, :, 0], kept, atol=1e-5)
