"""Searches of ggml's reference in which the integers of a small group are changed one after the other.

Groups are columns, and sums run from the first value to the last, as `search` says.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.search import ALL_ZERO, TENTH, Floats, largest_magnitude, nearest_int
from sporelm.quant.sums import sum_down

ROUNDS = 5


def search_in_turns(x: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
    """The scale of each group for integers -half to half - 1, and integer + half: float32 [size, groups].

    Each value in turn takes the integer that suits the scale which the others want, if the fit of the group gains by
    it; at most ROUNDS times. Values weigh their square. Groups of zeros have scale 0 and integers 0, not `half`.
    """
    low, high = np.float32(-half), np.float32(half - 1)
    largest = largest_magnitude(x)
    integers = np.clip(nearest_int(low / largest * x), low, high).astype(np.float32)
    weights = x * x
    weighted = weights * x
    sum_lx = sum_down(weighted * integers)
    sum_l2 = sum_down(weights * integers * integers)
    for _ in range(ROUNDS):
        changed = False
        for row, value in enumerate(x):
            lx = sum_lx - weighted[row] * integers[row]
            l2 = sum_l2 - weights[row] * integers[row] * integers[row]
            new = np.clip(nearest_int(value * l2 / lx), low, high).astype(np.float32)
            wanted = (lx > 0) & (new != integers[row])
            lx, l2 = lx + weighted[row] * new, l2 + weights[row] * new * new
            wanted &= (l2 > 0) & (lx * lx * sum_l2 > sum_lx * sum_lx * l2)
            for kept, found in ((integers[row], new), (sum_lx, lx), (sum_l2, l2)):
                np.copyto(kept, found, where=wanted)
            changed |= bool(wanted.any())
        if not changed:
            break
    is_zero = np.abs(largest) < ALL_ZERO
    scale = np.where((sum_l2 > 0) & ~is_zero, sum_lx / sum_l2, np.float32(0))
    return scale, np.where(is_zero, np.float32(0), integers + np.float32(half)).astype(np.uint8)


def search_above_zero(x: Floats, weights: Floats, levels: int) -> tuple[Floats, NDArray[np.uint8]]:
    """The scale of each group for integers 0 to `levels`, and the integers: values and weights float32 [size, groups].

    Inverse scales (levels + 0.1 * step) / maximum are tried, step 0 first, then -4 to 4, and the one of the smallest
    weighted squared error kept. Then each value in turn takes the integer that suits the scale which the others want,
    if the fit of the group gains by it; at most ROUNDS times. Groups without a positive value have scale 0 and
    integers 0; integers of negative values wrap around in eight bits, as in ggml.
    """
    top, highest = np.float32(levels), np.maximum(x.max(axis=0), np.float32(0))
    inverse = top / highest
    first = nearest_int(inverse * x).astype(np.uint8).astype(np.float32)  # not limited, as in ggml
    least = _error(x, weights, first, np.float32(1) / inverse)
    for step in (*range(-4, 0), *range(1, 5)):
        tried = (TENTH * np.float32(step) + top) / highest
        error = _error(x, weights, _limited(tried * x, levels), np.float32(1) / tried)
        better = error < least
        np.copyto(least, error, where=better)
        np.copyto(inverse, tried, where=better)
    integers = _limited(inverse * x, levels)
    weighted = weights * x
    sum_lx = sum_down(weighted * integers)
    sum_l2 = sum_down(weights * integers * integers)
    integers = _wrapped(integers)
    for _ in range(ROUNDS):
        changed = False
        for row, value in enumerate(x):
            lx = sum_lx - weighted[row] * integers[row]
            l2 = sum_l2 - weights[row] * integers[row] * integers[row]
            new = _limited(value * l2 / lx, levels)
            wanted = (lx > 0) & (l2 > 0) & (new != integers[row])
            lx, l2 = lx + weighted[row] * new, l2 + weights[row] * new * new
            wanted &= lx * lx * sum_l2 > sum_lx * sum_lx * l2
            for kept, found in ((integers[row], _wrapped(new)), (sum_lx, lx), (sum_l2, l2)):
                np.copyto(kept, found, where=wanted)
            changed |= bool(wanted.any())
        if not changed:
            break
    some = highest >= ALL_ZERO
    scale = np.where((sum_l2 > 0) & some, sum_lx / sum_l2, np.float32(0))
    return scale, np.where(some, integers, np.float32(0)).astype(np.uint8)


def _limited(numbers: Floats, levels: int) -> Floats:
    """The nearest integers, at most `levels`: float32 of any shape."""
    return np.minimum(nearest_int(numbers), levels).astype(np.float32)


def _wrapped(integers: Floats) -> Floats:
    """Integers modulo 256."""
    return integers.astype(np.int32).astype(np.uint8).astype(np.float32)


def _error(x: Floats, weights: Floats, integers: Floats, scale: Floats) -> Floats:
    """sum(weights * (x - scale * integers)^2) of each group, [groups]."""
    off = x - scale * integers
    return sum_down(weights * off * off)
