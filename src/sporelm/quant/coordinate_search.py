"""Coordinate searches of ggml's reference: the integers of a small group are improved one at a time.

Groups are columns, and sums run from the first value to the last; see `scale_search`.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.column_sums import sum_columns
from sporelm.quant.scale_search import ALL_ZERO, TENTH, Floats, find_largest_magnitude, round_to_int

MAX_ROUNDS = 5


def descend_signed(x: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
    """Search the scale of each group for integers -half to half - 1, and integer + half: float32 [size, groups].

    Each value in turn is rounded again with the scale that best fits the other values of its group, and the new integer
    is kept if it improves the group's fit. The search makes at most MAX_ROUNDS passes. A value weighs its square.
    Groups of zeros have scale 0 and integers 0, not `half`.
    """
    low = np.float32(-half)
    high = np.float32(half - 1)
    largest = find_largest_magnitude(x)
    integers = np.clip(round_to_int(low / largest * x), low, high).astype(np.float32)
    weights = x * x
    weighted = weights * x
    sum_lx = sum_columns(weighted * integers)
    sum_l2 = sum_columns(weights * integers * integers)
    for _ in range(MAX_ROUNDS):
        has_changed = False
        for row, value in enumerate(x):
            lx = sum_lx - weighted[row] * integers[row]
            l2 = sum_l2 - weights[row] * integers[row] * integers[row]
            new = np.clip(round_to_int(value * l2 / lx), low, high).astype(np.float32)
            better = (lx > 0) & (new != integers[row])
            lx = lx + weighted[row] * new
            l2 = l2 + weights[row] * new * new
            better &= (l2 > 0) & (lx * lx * sum_l2 > sum_lx * sum_lx * l2)
            for best, found in ((integers[row], new), (sum_lx, lx), (sum_l2, l2)):
                np.copyto(best, found, where=better)
            has_changed |= bool(better.any())
        if not has_changed:
            break
    is_zero = np.abs(largest) < ALL_ZERO
    scale = np.where((sum_l2 > 0) & ~is_zero, sum_lx / sum_l2, np.float32(0))
    return scale, np.where(is_zero, np.float32(0), integers + np.float32(half)).astype(np.uint8)


def search_unsigned(x: Floats, weights: Floats, levels: int) -> tuple[Floats, NDArray[np.uint8]]:
    """Search the scale of each group for integers 0 to `levels`: values and weights float32 [size, groups].

    Returns the scales and the integers. The candidate inverse scales are (levels + 0.1 * step) / maximum, step 0 first,
    then -4 to 4; the one with the smallest weighted squared error is kept. Then each value in turn is rounded again
    with the scale that best fits the other values, and the new integer is kept if it improves the group's fit. The
    search makes at most MAX_ROUNDS passes. Groups without a positive value have scale 0 and integers 0. Integers of
    negative values wrap around in eight bits, as in ggml.
    """
    top = np.float32(levels)
    highest = np.maximum(x.max(axis=0), np.float32(0))
    inverse = top / highest
    first = round_to_int(inverse * x).astype(np.uint8).astype(np.float32)  # not capped, as in ggml
    smallest = _squared_error(x, weights, first, np.float32(1) / inverse)
    for step in (*range(-4, 0), *range(1, 5)):
        candidate = (TENTH * np.float32(step) + top) / highest
        error = _squared_error(x, weights, _round_and_cap(candidate * x, levels), np.float32(1) / candidate)
        better = error < smallest
        np.copyto(smallest, error, where=better)
        np.copyto(inverse, candidate, where=better)
    integers = _round_and_cap(inverse * x, levels)
    weighted = weights * x
    sum_lx = sum_columns(weighted * integers)
    sum_l2 = sum_columns(weights * integers * integers)
    integers = _wrap_to_uint8(integers)
    for _ in range(MAX_ROUNDS):
        has_changed = False
        for row, value in enumerate(x):
            lx = sum_lx - weighted[row] * integers[row]
            l2 = sum_l2 - weights[row] * integers[row] * integers[row]
            new = _round_and_cap(value * l2 / lx, levels)
            better = (lx > 0) & (l2 > 0) & (new != integers[row])
            lx = lx + weighted[row] * new
            l2 = l2 + weights[row] * new * new
            better &= lx * lx * sum_l2 > sum_lx * sum_lx * l2
            for best, found in ((integers[row], _wrap_to_uint8(new)), (sum_lx, lx), (sum_l2, l2)):
                np.copyto(best, found, where=better)
            has_changed |= bool(better.any())
        if not has_changed:
            break
    is_nonzero = highest >= ALL_ZERO
    scale = np.where((sum_l2 > 0) & is_nonzero, sum_lx / sum_l2, np.float32(0))
    return scale, np.where(is_nonzero, integers, np.float32(0)).astype(np.uint8)


def _round_and_cap(numbers: Floats, levels: int) -> Floats:
    """Round to the nearest integers, at most `levels`: float32 of any shape."""
    return np.minimum(round_to_int(numbers), levels).astype(np.float32)


def _wrap_to_uint8(integers: Floats) -> Floats:
    """Return integers modulo 256."""
    return integers.astype(np.int32).astype(np.uint8).astype(np.float32)


def _squared_error(x: Floats, weights: Floats, integers: Floats, scale: Floats) -> Floats:
    """Return sum(weights * (x - scale * integers)^2) of each group, [groups]."""
    error = x - scale * integers
    return sum_columns(weights * error * error)
