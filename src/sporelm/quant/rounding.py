"""How the formats of 32 values round a block: float32 arithmetic step by step as ggml's reference does it.

Where a block's scale is so small that its inverse overflows, ggml converts infinities to integers, which C leaves
undefined and an x86 makes 0; these functions give 0 too. The scale is then stored as 0 and decides alone.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import inverse_or_zero
from sporelm.quant.search import FINE, nearest_int, search_above_minimum, search_around_zero, searched_integers
from sporelm.quant.sums import sum_down
from sporelm.quant.superblocks import in_parts

Floats = NDArray[np.float32]


def round_around_zero(values: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
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


def round_above_minimum(values: Floats, levels: int) -> tuple[Floats, NDArray[np.uint8]]:
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


def weigh_by_row(rows: Floats, importance: Floats) -> Floats:
    """importance * sqrt(mean square of the row + value^2): float32 [n, width], [width] -> [n, width].

    The squares of a row are added one after the other, as C does.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = rows * rows
        means = sum_down(np.ascontiguousarray(squares.T)) / np.float32(rows.shape[1])
        return importance * np.sqrt(means[:, None] + squares)


def fit_around_zero(values: Floats, half: int, weights: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """A scale that a search finds best for weighted values: float32 [n, values], weights the same.

    -> (scales float32 [n, 1], integers uint8 [n, values] of 0 to 2 * half - 1); a value is about
    (integer - half) * scale. Blocks of zeros have the scale 0 and integers 0.
    """
    return in_parts(partial(_fit_around_zero, half=half), values, weights)


def _fit_around_zero(values: Floats, weights: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
    x = np.ascontiguousarray(values.T)
    found = search_around_zero(x, half, np.ascontiguousarray(weights.T))
    return found.scale[:, None], np.ascontiguousarray(searched_integers(x, found, half).T)


def fit_above_minimum(values: Floats, levels: int, weights: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """A scale and a minimum, 0 or below, that a search finds best for weighted values: float32 [n, values] both.

    -> (float32 [n, 2]: scale, minimum; integers uint8 [n, values] of 0 to `levels`); a value is about
    integer * scale + minimum.
    """
    return in_parts(partial(_fit_above_minimum, levels=levels), values, weights)


def _fit_above_minimum(values: Floats, weights: Floats, levels: int) -> tuple[Floats, NDArray[np.uint8]]:
    x = np.ascontiguousarray(values.T)
    found = search_above_minimum(x, np.ascontiguousarray(weights.T), levels, FINE)
    rounded = np.clip(nearest_int((x - found.base) * found.inverse), 0, levels)
    numbers = np.stack([found.scale, -found.drop], axis=1)
    return numbers, np.ascontiguousarray(rounded.astype(np.uint8).T)
