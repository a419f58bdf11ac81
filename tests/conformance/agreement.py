"""How results of back-ends are compared in tests."""

import numpy as np

from close import assert_close
from sporelm.evals.conformance.conformance_case import Arrays


def assert_agrees(actual: Arrays, expected: Arrays, exact: bool) -> None:
    """Within the table's tolerance of the result's magnitude, or bit for bit; NaN and infinity at the same places."""
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        finite = np.abs(right[np.isfinite(right)], dtype=np.float64)
        magnitude = 1.0 if exact else float(finite.max(initial=0)) or 1.0
        shares = [array.astype(np.float64) / magnitude for array in (left, right)]
        assert_close(*shares, "exact" if exact else "f32")
