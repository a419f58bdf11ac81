"""Rounding of blocks of 32 values, in the float32 arithmetic of ggml's reference step by step.

Where a block's scale is so small that its inverse overflows, ggml converts infinities to integers. C leaves that
undefined and x86 gives 0; these functions give 0 too. The scale is then stored as 0, so the integers do not matter.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.column_sums import sum_columns
from sporelm.quant.format import inverse_or_zero
from sporelm.quant.scale_search import FINE_CANDIDATES, quantize_signed, round_to_int, search_affine, search_signed
from sporelm.quant.superblocks import round_in_chunks

Floats = NDArray[np.float32]


def round_signed(values: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
    """Round to signed integers with the scale that maps the value of largest magnitude to -half.

    float32 [n, values] -> (scales float32 [n, 1], integers + half uint8 [n, values] from 0 to 2 * half - 1); a value is
    about (integer - half) * scale. Among values of equal magnitude the first decides the sign of the scale.
    """
    first = np.abs(values).argmax(axis=1)[:, None]
    largest = np.take_along_axis(values, first, axis=1)
    largest[largest == 0] = 0  # a block of zeros has the scale -0, whatever the signs of its zeros
    scale = largest / np.float32(-half)
    inverse = inverse_or_zero(scale)
    undefined = (scale != 0) & (inverse == 0)
    offset = np.where(undefined, np.float32(0.5), np.float32(half + 0.5))
    integers = np.minimum(values * inverse + offset, np.float32(2 * half - 1)).astype(np.uint8)
    return scale, integers


def round_affine(values: Floats, levels: int) -> tuple[Floats, NDArray[np.uint8]]:
    """Round with a scale and a minimum: the smallest value becomes integer 0, the largest becomes `levels`.

    float32 [n, values] -> (float32 [n, 2]: scale, minimum; integers uint8 [n, values] from 0 to `levels`); a value is
    about integer * scale + minimum. A span beyond float32 has an infinite scale, and its integers are 0.
    """
    first = values.argmin(axis=1)[:, None]  # among zeros of both signs the first counts
    minimum = np.take_along_axis(values, first, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        span = values.max(axis=1, keepdims=True) - minimum + np.float32(0)  # never -0
        scale = span / np.float32(levels)
        scaled = (values - minimum) * inverse_or_zero(scale) + np.float32(0.5)
    scaled[np.isinf(scale[:, 0])] = 0
    integers = np.minimum(scaled, np.float32(levels)).astype(np.uint8)
    return np.concatenate([scale, minimum], axis=1), integers


def weigh_by_row(rows: Floats, importance: Floats) -> Floats:
    """Return importance * sqrt(mean square of the row + value^2): float32 [n, width], [width] -> [n, width].

    The squares of a row are added in order, as in C.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = rows * rows
        means = sum_columns(np.ascontiguousarray(squares.T)) / np.float32(rows.shape[1])
        return importance * np.sqrt(means[:, None] + squares)


def fit_signed(values: Floats, half: int, weights: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """Round to signed integers with the best scale of a search: values and weights float32 [n, values].

    -> (scales float32 [n, 1], integers + half uint8 [n, values] from 0 to 2 * half - 1); a value is about
    (integer - half) * scale. Blocks of zeros have the scale 0 and integers 0.
    """
    return round_in_chunks(partial(_fit_signed, half=half), values, weights)


def _fit_signed(values: Floats, weights: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
    x = np.ascontiguousarray(values.T)
    fit = search_signed(x, half, np.ascontiguousarray(weights.T))
    return fit.scale[:, None], np.ascontiguousarray(quantize_signed(x, fit, half).T)


def fit_affine(values: Floats, levels: int, weights: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """Round with the best scale and minimum (0 or below) of a search: values and weights float32 [n, values].

    -> (float32 [n, 2]: scale, minimum; integers uint8 [n, values] from 0 to `levels`); a value is about
    integer * scale + minimum.
    """
    return round_in_chunks(partial(_fit_affine, levels=levels), values, weights)


def _fit_affine(values: Floats, weights: Floats, levels: int) -> tuple[Floats, NDArray[np.uint8]]:
    x = np.ascontiguousarray(values.T)
    fit = search_affine(x, np.ascontiguousarray(weights.T), levels, FINE_CANDIDATES)
    rounded = np.clip(round_to_int((x - fit.base) * fit.inverse), 0, levels)
    numbers = np.stack([fit.scale, -fit.drop], axis=1)
    return numbers, np.ascontiguousarray(rounded.astype(np.uint8).T)
