"""The searches with which ggml's reference selects the scale of a small group of weights, vectorised over groups.

Groups are columns: float32 [size, groups]. Every sum over a group runs in float32 from its first value to its last, as
in the C loop: numpy adds the rows of such an array in order (it sums pairwise only along contiguous memory). A C
compiler for plain x86-64 does not fuse multiplications and additions, so the results equal ggml's bit for bit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.column_sums import sum_columns

Floats = NDArray[np.float32]

TENTH = np.float32(0.1)
ALL_ZERO = np.float32(1e-15)  # a group whose largest magnitude is below this counts as zero
MANTISSA_SHIFT = np.float32(12582912)  # 1.5 * 2^23: adding it leaves the rounded integer in the low bits


class AffineFit(NamedTuple):
    """Groups as integer * scale - drop. The search used the integers round((value - base) * inverse)."""

    scale: Floats  # [groups]
    drop: Floats  # [groups], minus the minimum, not negative
    inverse: Floats  # [groups]
    base: Floats  # [groups]


class SignedFit(NamedTuple):
    """Groups as (integer - half) * scale. The search used the integers round(value * inverse) + half."""

    scale: Floats  # [groups]
    inverse: Floats  # [groups]
    is_zero: NDArray[np.bool_]  # [groups], whether all integers are 0


def round_to_int(numbers: Floats) -> NDArray[np.int32]:
    """Round to the nearest integer, ties to even. Infinities, NaN and magnitudes beyond 2^22 wrap, as in ggml."""
    bits = (numbers + MANTISSA_SHIFT).view(np.int32)
    return (bits & np.int32(0x007F_FFFF)) - np.int32(0x0040_0000)


class ScaleCandidates(NamedTuple):
    """The candidate inverse scales: (levels + first + delta * step) / span for each step."""

    first: float
    delta: float
    steps: int


FINE_CANDIDATES = ScaleCandidates(-0.9, 0.05, 37)  # those of ggml with an importance matrix


def default_weights(x: Floats) -> Floats:
    """Return the weights of values without importance: magnitude plus the root mean square of the group.

    float32 [size, groups] -> the same shape.
    """
    return np.abs(x) + np.sqrt(sum_columns(x * x) / np.float32(len(x)))


def search_affine(
    x: Floats, weights: Floats, levels: int, candidates: ScaleCandidates, by_magnitude: bool = False
) -> AffineFit:
    """Search the scale and minimum of each group for integers 0 to `levels`: values, weights float32 [size, groups].

    The search starts with the span from the minimum (0 if all values are positive) to the maximum. For each candidate
    inverse scale, values are rounded to integers, and scale and minimum are fitted to them by least squares. A fit with
    a smaller weighted squared error (`by_magnitude`: weighted absolute error) is kept, and its minimum is used for the
    next spans.
    """
    top = np.float32(levels)
    highest = x.max(axis=0)
    error_of = _absolute_error if by_magnitude else _squared_error
    sum_w = sum_columns(weights)
    sum_x = sum_columns(weights * x)
    integers = np.empty_like(x)
    scratch = np.empty_like(x)
    lowest = x[x.argmin(axis=0), np.arange(x.shape[1])]  # among zeros of both signs the first counts
    minimum: Floats = np.where(lowest > 0, np.float32(0), lowest)
    constant = highest == minimum
    inverse: Floats = np.divide(top, np.where(constant, np.float32(1), highest - minimum))
    _round_affine(x, minimum, inverse, top, integers)
    scale = np.reciprocal(inverse)
    best_inverse = inverse
    base = minimum.copy()
    best_error = error_of(x, weights, integers, scale, minimum, scratch)
    scale[constant] = 0  # and it stays 0, since the determinants are 0
    for step in range(candidates.steps):
        factor = np.float32(candidates.first) + np.float32(candidates.delta) * np.float32(step) + top
        inverse = np.divide(factor, np.where(constant, np.float32(1), highest - minimum))
        _round_affine(x, minimum, inverse, top, integers)
        np.multiply(weights, integers, out=scratch)
        sum_l = sum_columns(scratch)
        sum_l2 = sum_columns(scratch * integers)
        scratch *= x
        sum_xl = sum_columns(scratch)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        fitted = (sum_w * sum_xl - sum_x * sum_l) / determinant
        offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        fitted = np.where(offset > 0, sum_xl / sum_l2, fitted)
        offset = np.where(offset > 0, np.float32(0), offset)
        error = error_of(x, weights, integers, fitted, offset, scratch)
        better = (determinant > 0) & (error < best_error)
        updates = ((best_error, error), (scale, fitted), (best_inverse, inverse), (base, minimum), (minimum, offset))
        for best, new in updates:
            np.copyto(best, new, where=better)
    return AffineFit(scale, -minimum, best_inverse, base)


def _round_affine(x: Floats, base: Floats, inverse: Floats, top: np.float32, out: Floats) -> None:
    """Write round((x - base) * inverse), clipped to 0..top, to `out`: [size, groups], base and inverse [groups].

    A tiny span has an infinite inverse, and its integers become NaN or `top` instead of 0 as in ggml. No later error is
    then smaller than the first one, so such groups keep their starting fit, as in ggml.
    """
    np.subtract(x, base, out=out)
    out *= inverse
    np.rint(out, out=out)
    np.clip(out, np.float32(0), top, out=out)


def _squared_error(x: Floats, weights: Floats, integers: Floats, scale: Floats, minimum: Floats, out: Floats) -> Floats:
    """Return sum(weights * (scale * integers + minimum - x)^2) of each group, [groups]; `out` is scratch space."""
    np.multiply(integers, scale, out=out)
    out += minimum
    out -= x
    out *= out
    out *= weights
    return sum_columns(out)


def _absolute_error(
    x: Floats, weights: Floats, integers: Floats, scale: Floats, minimum: Floats, out: Floats
) -> Floats:
    """Return sum(weights * |scale * integers + minimum - x|) of each group, [groups]; `out` is scratch space."""
    np.multiply(integers, scale, out=out)
    out += minimum
    out -= x
    np.abs(out, out=out)
    out *= weights
    return sum_columns(out)


def search_signed(x: Floats, half: int, weights: Floats | None = None) -> SignedFit:
    """Search the scale of each group for integers -half to half - 1: values and weights float32 [size, groups].

    The candidate inverse scales are -(half + 0.1 * step) / (value of largest magnitude), step 0 first, then -9 to 9.
    Values are rounded to integers with each, and the scale is fitted to them by least squares; the fit with the
    smallest weighted error wins. Without weights a value weighs its square. Non-finite numbers count as integer 0.
    """
    largest = find_largest_magnitude(x)
    is_zero = np.abs(largest) < ALL_ZERO
    weights = x * x if weights is None else weights
    weighted = weights * x
    integers = np.empty_like(x)
    scratch = np.empty_like(x)
    low = np.float32(-half)
    high = np.float32(half - 1)
    has_nonfinite = not np.isfinite(x).all()
    scale = best = best_inverse = np.zeros(x.shape[1], np.float32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + TENTH * np.float32(step)) / largest
        np.multiply(x, inverse, out=integers)
        np.clip(np.rint(integers, out=integers), low, high, out=integers)
        if has_nonfinite:
            integers[np.isnan(integers)] = 0
        sum_lx = sum_columns(np.multiply(weighted, integers, out=scratch))
        np.multiply(weights, integers, out=scratch)
        scratch *= integers
        sum_l2 = sum_columns(scratch)
        fitted = sum_lx / sum_l2
        if step == 0:
            fitted[sum_l2 == 0] = 0
            scale = fitted
            best = fitted * sum_lx
            best_inverse = inverse
            continue
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        np.copyto(scale, fitted, where=better)
        np.copyto(best, fitted * sum_lx, where=better)
        np.copyto(best_inverse, inverse, where=better)
    scale[is_zero] = 0
    return SignedFit(scale, best_inverse, is_zero)


def find_largest_magnitude(x: Floats) -> Floats:
    """Return the value of largest magnitude of each group, the first at a tie, 0 if all are NaN: [size, groups]."""
    magnitudes = np.abs(x)
    if np.isnan(magnitudes).any():
        is_nan = np.isnan(x)
        x = np.where(is_nan, np.float32(0), x)
        magnitudes = np.where(is_nan, np.float32(0), magnitudes)
    return x[magnitudes.argmax(axis=0), np.arange(x.shape[1])]


def quantize_signed(x: Floats, fit: SignedFit, half: int) -> NDArray[np.uint8]:
    """Round to the integers + half of a signed search: float32 [size, groups] -> uint8 [size, groups]."""
    integers = np.clip(round_to_int(x * fit.inverse), -half, half - 1) + half
    return np.where(fit.is_zero, 0, integers).astype(np.uint8)
