"""Four-bit codes of sixteen levels that are not evenly spaced, and how ggml's reference finds the nearest one."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.sums import sum_down

Floats = NDArray[np.float32]

# IQ4_NL's and IQ4_XS's levels (a table of llama.cpp): denser around zero, as weights are.
CURVED = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
TRIES = 7  # inverse scales (-127 + k) / extreme are tried for k of -7 to 7
ALL_ZERO = np.float32(1e-15)  # a run whose largest magnitude is below counts as zero

# MXFP4's and NVFP4's numbers, doubled: E2M1 of the OCP microscaling formats, with one bit of mantissa.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

# The nearest of CURVED by floor(2 * x) + 256: where it changes, half-way between two, is a multiple of 1/2.
_NEAREST = np.searchsorted((CURVED[1:] + CURVED[:-1]) / 2, np.arange(-256, 256) / 2, side="right").astype(np.uint8)


def nearest_curved(x: Floats) -> NDArray[np.uint8]:
    """The code of the level of CURVED nearest to each number, the upper one half-way; NaN is 15, as in ggml."""
    doubled = np.maximum(np.fmin(np.floor(x * np.float32(2)), np.float32(255)), np.float32(-256))
    return _NEAREST[doubled.astype(np.int16) + np.int16(256)]


def search_curved_scale(x: Floats, weights: Floats | None = None) -> Floats:
    """The scale of each run for the levels of CURVED: values and weights float32 [size, runs] -> [runs].

    The value of largest magnitude is made -127, then each of the levels that TRIES says, exactly; all are rounded to
    the nearest levels, the scale fitted to these by least squares, and kept if it explains more. Values weigh their
    square if no weights are given. Sums run in float32 from the first value to the last, see `search`.
    """
    extreme = x[np.abs(x).argmax(axis=0), np.arange(x.shape[1])]
    weights = x * x if weights is None else weights
    scale, best = _fitted(x, weights, np.float32(1) / (-extreme / CURVED[0]))[:2]
    best = scale * best
    for step in range(-TRIES, TRIES + 1):
        fitted, sum_x, sum_2 = _fitted(x, weights, (np.float32(step) + CURVED[0]) / extreme)
        better = (sum_2 > 0) & (sum_x * sum_x > best * sum_2)
        for kept, found in ((scale, fitted), (best, fitted * sum_x)):
            np.copyto(kept, found, where=better)
    scale[np.abs(extreme) < ALL_ZERO] = 0
    return scale


def spread_of(x: Floats) -> Floats:
    """What importance is multiplied by: sqrt(2 * mean square of the block + value^2), float32 [size, blocks]."""
    squares = x * x
    return np.sqrt(sum_down(squares) * np.float32(2 / len(x)) + squares)


def _fitted(x: Floats, weights: Floats, inverse: Floats) -> tuple[Floats, Floats, Floats]:
    """With integers round(x * inverse): the scale that fits them best, and the two sums it is the quotient of."""
    levels = CURVED[nearest_curved(x * inverse)]
    weighted = weights * levels
    sum_x, sum_2 = sum_down(weighted * x), sum_down(weighted * levels)
    return np.where(sum_2 > 0, sum_x / sum_2, np.float32(0)), sum_x, sum_2


def nearest_e2m1(x: Floats, half_steps: Floats) -> NDArray[np.uint8]:
    """The code of E2M1_DOUBLED whose number times the half step is nearest to x, of equal ones the first.

    float32 [..., values] and [..., 1] -> uint8 [..., values].
    """
    best_error, codes = np.abs(x), np.zeros(x.shape, np.uint8)
    for code, level in enumerate(E2M1_DOUBLED):
        error = np.abs(level * half_steps - x)
        better = error < best_error
        np.copyto(best_error, error, where=better)
        codes[better] = code
    return codes
