"""Non-uniform 4-bit levels (IQ4 and E2M1), and how ggml's reference finds the nearest one."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.column_sums import sum_columns

Floats = NDArray[np.float32]

# The levels of IQ4_NL and IQ4_XS (llama.cpp's `kvalues_iq4nl`): denser around zero, as weights are.
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MAX_SEARCH_STEP = 7  # inverse scales (-127 + k) / extreme are tried for k of -7 to 7
ALL_ZERO = np.float32(1e-15)  # a block whose largest magnitude is below this counts as zero

# The numbers of MXFP4 and NVFP4, doubled: E2M1 of the OCP microscaling formats, with one mantissa bit.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

# The nearest code by floor(2 * x) + 256: it changes half-way between two levels, at a multiple of 1/2.
_NEAREST_IQ4_CODE = np.searchsorted(
    (IQ4_LEVELS[1:] + IQ4_LEVELS[:-1]) / 2, np.arange(-256, 256) / 2, side="right"
).astype(np.uint8)


def round_to_iq4(x: Floats) -> NDArray[np.uint8]:
    """Return the code of the nearest IQ4 level, the upper one at a tie; NaN is 15, as in ggml."""
    doubled = np.maximum(np.fmin(np.floor(x * np.float32(2)), np.float32(255)), np.float32(-256))
    return _NEAREST_IQ4_CODE[doubled.astype(np.int16) + np.int16(256)]


def search_iq4_scale(x: Floats, weights: Floats | None = None) -> Floats:
    """Search the scale of each block for the IQ4 levels: values and weights float32 [size, blocks] -> [blocks].

    Each candidate scale maps the value of largest magnitude exactly to -127 plus a step of up to MAX_SEARCH_STEP. All
    values are rounded to the nearest level, and the scale is fitted to them by least squares. The candidate with the
    smallest weighted error wins. Without weights a value weighs its square. Sums run in float32 from the first value
    to the last; see `scale_search`.
    """
    extreme = x[np.abs(x).argmax(axis=0), np.arange(x.shape[1])]
    weights = x * x if weights is None else weights
    scale, best = _fit_scale(x, weights, np.float32(1) / (-extreme / IQ4_LEVELS[0]))[:2]
    best = scale * best
    for step in range(-MAX_SEARCH_STEP, MAX_SEARCH_STEP + 1):
        fitted, sum_x, sum_2 = _fit_scale(x, weights, (np.float32(step) + IQ4_LEVELS[0]) / extreme)
        better = (sum_2 > 0) & (sum_x * sum_x > best * sum_2)
        np.copyto(scale, fitted, where=better)
        np.copyto(best, fitted * sum_x, where=better)
    scale[np.abs(extreme) < ALL_ZERO] = 0
    return scale


def spread_weights(x: Floats) -> Floats:
    """Return the factors of the importance: sqrt(2 * mean square of the block + value^2), float32 [size, blocks]."""
    squares = x * x
    return np.sqrt(sum_columns(squares) * np.float32(2 / len(x)) + squares)


def _fit_scale(x: Floats, weights: Floats, inverse: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit a scale to the levels round(x * inverse) by least squares; return it and the two sums of its quotient."""
    levels = IQ4_LEVELS[round_to_iq4(x * inverse)]
    weighted = weights * levels
    sum_x = sum_columns(weighted * x)
    sum_2 = sum_columns(weighted * levels)
    return np.where(sum_2 > 0, sum_x / sum_2, np.float32(0)), sum_x, sum_2


def round_to_e2m1(x: Floats, half_steps: Floats) -> NDArray[np.uint8]:
    """Return the code of E2M1_DOUBLED whose number times the half step is nearest to x, the first one at a tie.

    float32 [..., values] and [..., 1] -> uint8 [..., values].
    """
    best_error = np.abs(x)
    codes = np.zeros(x.shape, np.uint8)
    for code, level in enumerate(E2M1_DOUBLED):
        error = np.abs(level * half_steps - x)
        better = error < best_error
        np.copyto(best_error, error, where=better)
        codes[better] = code
    return codes
