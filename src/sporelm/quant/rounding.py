"""How the formats of 32 values round a block: float32 arithmetic step by step as ggml's reference does it.

Where a block's scale is so small that its inverse overflows, ggml converts infinities to integers, which C leaves
undefined and an x86 makes 0; these functions give 0 too. The scale is then stored as 0 and decides alone.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import inverse_or_zero


def round_around_zero(values: NDArray[np.float32], half: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """A scale with which the value of largest magnitude becomes integer 0, the one of `half` steps below zero.

    float32 [n, values] -> (scales float32 [n, 1], integers uint8 [n, values] of 0 to 2 * half - 1); a value is about
    (integer - half) * scale. Of values of equal magnitude the first decides the sign of the scale.
    """
    first = np.abs(values).argmax(axis=1)[:, None]
    largest = np.take_along_axis(values, first, axis=1)
    largest[largest == 0] = 0  # a block of zeros has the scale -0, whatever the signs of the zeros
    scale = largest / np.float32(-half)
    inverse = inverse_or_zero(scale)
    undefined = (scale != 0) & (inverse == 0)
    offset = np.where(undefined, np.float32(0.5), np.float32(half + 0.5))
    integers = np.minimum(values * inverse + offset, np.float32(2 * half - 1)).astype(np.uint8)
    return scale, integers


def round_above_minimum(values: NDArray[np.float32], levels: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """A scale and a minimum with which the smallest value becomes integer 0 and the largest integer `levels`.

    float32 [n, values] -> (float32 [n, 2]: scale, minimum; integers uint8 [n, values] of 0 to `levels`); a value is
    about integer * scale + minimum. A span beyond float32 has an infinite scale, and its integers are 0.
    """
    first = values.argmin(axis=1)[:, None]  # of zeros of both signs the first counts
    minimum = np.take_along_axis(values, first, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        span = values.max(axis=1, keepdims=True) - minimum + np.float32(0)  # never -0
        scale = span / np.float32(levels)
        scaled = (values - minimum) * inverse_or_zero(scale) + np.float32(0.5)
    scaled[np.isinf(scale[:, 0])] = 0
    integers = np.minimum(scaled, np.float32(levels)).astype(np.uint8)
    return np.concatenate([scale, minimum], axis=1), integers
