"""How close is close enough: the one table of tolerances."""

from typing import Any

import numpy as np

# kind -> (absolute, relative): |actual - expected| <= absolute + relative * (|actual| + |expected|) / 2
TOLERANCES: dict[str, tuple[float, float]] = {
    "exact": (0.0, 0.0),  # bit for bit
    "f32": (1e-5, 1e-5),  # a kernel against the op's meaning
    "f16": (1e-3, 1e-3),  # results stored as float16
    "logits": (1e-4, 0.0),  # a float32 model against transformers
    "course": (0.0, 1e-3),  # the course project's operator tests
    "bf16": (3e-2, 0.0),  # shares of the range of logits, of weights rounded to bfloat16 against whole ones
    "stored": (0.0, 1e-6),  # values as a model file holds them, written out as decimals
}


def assert_close(actual: Any, expected: Any, dtype: str) -> None:
    """Compare element by element within the table's tolerance; shapes, NaNs and infinities must be equal."""
    absolute, relative = TOLERANCES[dtype]
    left, right = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert left.shape == right.shape, f"shape {left.shape} instead of {right.shape}"
    with np.errstate(invalid="ignore"):
        allowed = absolute + relative * (np.abs(left) + np.abs(right)) / 2
        same = (left == right) | (np.isnan(left) & np.isnan(right)) | (np.abs(left - right) <= allowed)
        if not same.all():
            worst = np.unravel_index(
                np.where(same, -1, np.nan_to_num(np.abs(left - right), nan=np.inf)).argmax(), left.shape
            )
            raise AssertionError(
                f"{(~same).sum()} of {same.size} differ beyond {dtype} (absolute {absolute}, relative {relative});"
                f" worst at {tuple(map(int, worst))}: {left[worst]} instead of {right[worst]}"
            )


def assert_near_in_nat(logits: np.ndarray, expected: np.ndarray, limit: float, *, mean: bool = False) -> None:
    """The divergence KL(expected || logits) of no row, each of scores [rows, vocab], is more than `limit` nat; or that
    of the mean row."""
    assert logits.shape == expected.shape
    scores = [array.astype(np.float64) - array.max(axis=1, keepdims=True) for array in (expected, logits)]
    right, left = (array - np.log(np.exp(array).sum(axis=1, keepdims=True)) for array in scores)
    found = (np.exp(right) * (right - left)).sum(axis=1)
    worst, which = (found.mean(), "the mean") if mean else (found.max(initial=0), "some")
    assert worst <= limit, f"{worst:.2e} nat in {which} row, {limit:.0e} are allowed"
