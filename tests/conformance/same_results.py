"""Comparison of results bit for bit."""

import numpy as np


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit."""
    assert found.shape == expected.shape
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32)), f"{(found != expected).sum()} differ"
