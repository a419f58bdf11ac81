"""Rows of pictures take the place of rows of a prompt, or are added to them."""

from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend

BACKEND = ReferenceBackend()
X = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
VALUES = np.array([[10, 20, 30, 40], [50, 60, 70, 80]], np.float32)
ROWS = np.array([-1, 1, 0, 1], np.int32)


@pytest.mark.parametrize(
    ("op", "first", "expected"),
    [
        (ops.replace_rows, 0, [[1, 2], [50, 60], [10, 20], [50, 60]]),
        (ops.replace_rows, 2, [[1, 2], [70, 80], [30, 40], [70, 80]]),
        (ops.add_rows, 0, [[1, 2], [53, 64], [15, 26], [57, 68]]),
        (ops.add_rows, 1, [[1, 2], [63, 74], [25, 36], [67, 78]]),
    ],
)
def test_rows_come_from_the_chosen_columns(op: Any, first: int, expected: list[list[int]]) -> None:
    found = op(*(BACKEND.tensor(each) for each in (X, VALUES, ROWS)), first=first)
    assert found.numpy().tolist() == expected


@pytest.mark.parametrize("op", [ops.replace_rows, ops.add_rows])
def test_rows_of_text_keep_their_bits(op: Any) -> None:
    """Also a negative zero, to which nothing is added, and beside pictures that are not numbers."""
    x, values = np.full((2, 2), -0.0, np.float32), np.full((1, 2), np.nan, np.float32)
    found = op(*(BACKEND.tensor(each) for each in (x, values, np.array([-1, 0], np.int32)))).numpy()
    assert np.signbit(found[0]).all()
    assert np.isnan(found[1]).all()
