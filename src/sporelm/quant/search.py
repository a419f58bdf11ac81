"""The searches by which ggml's reference picks the scale of a small group of weights, vectorised over groups.

Groups are columns: float32 [size, groups]. Every sum over a group runs in float32 from its first value to its last, as
the C loop does: numpy adds the rows of such an array one after another (it sums in pairs only along memory). With that,
and since a C compiler for plain x86-64 fuses no multiplications and additions, results are ggml's bit for bit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.sums import sum_down

Floats = NDArray[np.float32]

TENTH = np.float32(0.1)
ALL_ZERO = np.float32(1e-15)  # a group whose largest magnitude is below counts as zero
MANTISSA_SHIFT = np.float32(12582912)  # 1.5 * 2^23: adding it leaves the rounded integer in the low bits


class AboveMinimum(NamedTuple):
    """Groups as integer * scale - drop; the integers that the search had are round((value - base) * inverse)."""

    scale: Floats  # [groups]
    drop: Floats  # [groups], the negative minimum, not below 0
    inverse: Floats  # [groups]
    base: Floats  # [groups]


class AroundZero(NamedTuple):
    """Groups as (integer - half) * scale; the integers that the search had are round(value * inverse) + half."""

    scale: Floats  # [groups]
    inverse: Floats  # [groups]
    is_zero: NDArray[np.bool_]  # [groups], of which all integers are 0


def nearest_int(numbers: Floats) -> NDArray[np.int32]:
    """Round to the nearest integer, ties to even; infinities, NaN and magnitudes beyond 2^22 give what the bits say."""
    bits = (numbers + MANTISSA_SHIFT).view(np.int32)
    return (bits & np.int32(0x007F_FFFF)) - np.int32(0x0040_0000)


class Tries(NamedTuple):
    """The inverse scales tried: (levels + first + delta * step) / span for each step."""

    first: float
    delta: float
    steps: int


FINE = Tries(-0.9, 0.05, 37)  # ggml's with an importance matrix


def own_weights(x: Floats) -> Floats:
    """How much values weigh without importance: their magnitude plus their group's root mean square.

    float32 [size, groups] -> the same.
    """
    return np.abs(x) + np.sqrt(sum_down(x * x) / np.float32(len(x)))


def search_above_minimum(
    x: Floats, weights: Floats, levels: int, tries: Tries, by_magnitude: bool = False
) -> AboveMinimum:
    """The scale and minimum of each group for integers 0 to `levels`: values and weights float32 [size, groups].

    The start is the span from the minimum (0 if all are positive) to the maximum. Then the inverse scales of `tries`
    are tried: integers are rounded with each, scale and minimum fitted to them by least squares, and kept, also as the
    minimum of the next spans, if the weighted squared error is smaller (`by_magnitude`: the weighted magnitude of it).
    """
    top, highest = np.float32(levels), x.max(axis=0)
    error_of = _absolute_error if by_magnitude else _squared_error
    sum_w, sum_x = sum_down(weights), sum_down(weights * x)
    integers, scratch = np.empty_like(x), np.empty_like(x)
    lowest = x[x.argmin(axis=0), np.arange(x.shape[1])]  # of zeros of both signs the first counts
    minimum: Floats = np.where(lowest > 0, np.float32(0), lowest)
    constant = highest == minimum
    inverse: Floats = np.divide(top, np.where(constant, np.float32(1), highest - minimum))
    _round_above(x, minimum, inverse, top, integers)
    scale, best_inverse, base = np.reciprocal(inverse), inverse, minimum.copy()
    best_error = error_of(x, weights, integers, scale, minimum, scratch)
    scale[constant] = 0  # and so it stays, for the determinants are 0
    for step in range(tries.steps):
        factor = np.float32(tries.first) + np.float32(tries.delta) * np.float32(step) + top
        inverse = np.divide(factor, np.where(constant, np.float32(1), highest - minimum))
        _round_above(x, minimum, inverse, top, integers)
        np.multiply(weights, integers, out=scratch)
        sum_l = sum_down(scratch)
        sum_l2 = sum_down(scratch * integers)
        scratch *= x
        sum_xl = sum_down(scratch)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        fitted = (sum_w * sum_xl - sum_x * sum_l) / determinant
        offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        fitted = np.where(offset > 0, sum_xl / sum_l2, fitted)
        offset = np.where(offset > 0, np.float32(0), offset)
        error = error_of(x, weights, integers, fitted, offset, scratch)
        better = (determinant > 0) & (error < best_error)
        found = ((best_error, error), (scale, fitted), (best_inverse, inverse), (base, minimum), (minimum, offset))
        for kept, new in found:
            np.copyto(kept, new, where=better)
    return AboveMinimum(scale, -minimum, best_inverse, base)


def _round_above(x: Floats, base: Floats, inverse: Floats, top: np.float32, out: Floats) -> None:
    """Write round((x - base) * inverse), within 0 to `top`, to `out`: [size, groups], base and inverse [groups].

    A span of almost nothing has an infinite inverse; its integers become NaN or `top`, not 0 as in ggml, but then no
    error is smaller than the first one, and such groups keep their start as they do there.
    """
    np.subtract(x, base, out=out)
    out *= inverse
    np.rint(out, out=out)
    np.clip(out, np.float32(0), top, out=out)


def _squared_error(x: Floats, weights: Floats, integers: Floats, scale: Floats, minimum: Floats, out: Floats) -> Floats:
    """sum(weights * (scale * integers + minimum - x)^2) of each group, [groups]; `out` is scratch space."""
    np.multiply(integers, scale, out=out)
    out += minimum
    out -= x
    out *= out
    out *= weights
    return sum_down(out)


def _absolute_error(
    x: Floats, weights: Floats, integers: Floats, scale: Floats, minimum: Floats, out: Floats
) -> Floats:
    """sum(weights * |scale * integers + minimum - x|) of each group, [groups]; `out` is scratch space."""
    np.multiply(integers, scale, out=out)
    out += minimum
    out -= x
    np.abs(out, out=out)
    out *= weights
    return sum_down(out)


def search_around_zero(x: Floats, half: int, weights: Floats | None = None) -> AroundZero:
    """The scale of each group for integers -half to half - 1: values and weights float32 [size, groups].

    Inverse scales -(half + 0.1 * step) / (value of largest magnitude) are tried, step 0 first, then -9 to 9: integers
    are rounded with each, the scale fitted to them by least squares, and kept if it explains more. Values weigh their
    square if no weights are given. Numbers that are not finite count as integer 0.
    """
    largest = largest_magnitude(x)
    is_zero = np.abs(largest) < ALL_ZERO
    weights = x * x if weights is None else weights
    weighted = weights * x
    integers, scratch = np.empty_like(x), np.empty_like(x)
    low, high, doubtful = np.float32(-half), np.float32(half - 1), not np.isfinite(x).all()
    scale = best = best_inverse = np.zeros(x.shape[1], np.float32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + TENTH * np.float32(step)) / largest
        np.multiply(x, inverse, out=integers)
        np.clip(np.rint(integers, out=integers), low, high, out=integers)
        if doubtful:
            integers[np.isnan(integers)] = 0
        sum_lx = sum_down(np.multiply(weighted, integers, out=scratch))
        np.multiply(weights, integers, out=scratch)
        scratch *= integers
        sum_l2 = sum_down(scratch)
        fitted = sum_lx / sum_l2
        if step == 0:
            fitted[sum_l2 == 0] = 0
            scale, best, best_inverse = fitted, fitted * sum_lx, inverse
            continue
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        for kept, found in ((scale, fitted), (best, fitted * sum_lx), (best_inverse, inverse)):
            np.copyto(kept, found, where=better)
    scale[is_zero] = 0
    return AroundZero(scale, best_inverse, is_zero)


def largest_magnitude(x: Floats) -> Floats:
    """The value of largest magnitude of each group, of equal ones the first, 0 if all are NaN: [size, groups]."""
    magnitudes = np.abs(x)
    if np.isnan(magnitudes).any():
        x, magnitudes = (np.where(np.isnan(x), np.float32(0), part) for part in (x, magnitudes))
    return x[magnitudes.argmax(axis=0), np.arange(x.shape[1])]


def searched_integers(x: Floats, found: AroundZero, half: int) -> NDArray[np.uint8]:
    """The integers + half that a search around zero had: float32 [size, groups] -> uint8 [size, groups]."""
    integers = np.clip(nearest_int(x * found.inverse), -half, half - 1) + half
    return np.where(found.is_zero, 0, integers).astype(np.uint8)
