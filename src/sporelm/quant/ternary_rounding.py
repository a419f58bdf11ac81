"""Rounding of blocks to -1, 0 and 1 times the largest magnitude, as ggml's reference does it."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import inverse_or_zero

HALF = np.float32(0.5)


def round_ternary(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Round to largest magnitudes and integers: float32 [n, values] -> float32 [n, 1], uint8 [n, values] of 0, 1, 2.

    A value is about (integer - 1) * magnitude; halves are rounded away from zero. Where the inverse of a magnitude
    overflows, all integers are 1 and the magnitude is stored as 0.
    """
    largest = np.abs(values).max(axis=1, keepdims=True)
    scaled = values * inverse_or_zero(largest)
    return largest, ((scaled >= HALF).astype(np.uint8) + np.uint8(1)) - (scaled <= -HALF).astype(np.uint8)
