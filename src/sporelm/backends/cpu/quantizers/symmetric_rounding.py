"""Integers of a block around zero with one scale: see `quant.block_rounding` and `quant.scale_search`."""

from sporelm.backends.cpu.jit import Builder, Val, i32
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, inverse_or_zero, nearest_between

ALL_ZERO = 1e-15  # a group with a smaller largest magnitude counts as zero


def largest_magnitude(k: Builder, x: Column) -> tuple[Val, Val]:
    """Return the value of largest magnitude, the first of equal ones, and its magnitude; 0 for a block of zeros."""
    found, magnitude = k.const(k.vf, 0.0), k.const(k.vf, 0.0)
    for at in range(x.count):
        value = x[at]
        here = k.fabs(value)
        is_larger = here > magnitude
        found, magnitude = k.select(is_larger, value, found), k.select(is_larger, here, magnitude)
    return found, magnitude


def round_symmetric(work: QuantizerWorkspace, x: Column, half: int, integers: Column) -> Val:
    """Return the scale that puts the value of largest magnitude `half` steps below zero; set the integers + half."""
    k = work.k
    scale = largest_magnitude(k, x)[0] / -float(half)
    inverse = inverse_or_zero(k, scale)
    lost = Val(k, k.ir.and_(scale.differs(0.0).raw, inverse.equals(0.0).raw))
    offset = k.select(lost, k.const(k.vf, 0.5), k.const(k.vf, half + 0.5))
    for at in range(x.count):
        integers[at] = k.min((x[at] * inverse + offset).to_int(), 2 * half - 1)
    return scale


def fit_symmetric(work: QuantizerWorkspace, x: Column, weights: Column, half: int, integers: Column) -> Val:
    """Return the scale that a search finds best for weighted values; set the integers + half, 0 in blocks of zeros."""
    k = work.k
    scale, inverse, is_zero = search_symmetric(k, x, weights, half)
    for at in range(x.count):
        integer = nearest_between(k, x[at] * inverse, -half, half - 1) + half
        integers[at] = k.select(is_zero, k.const(k.vi, 0), integer)
    return scale


def search_symmetric(k: Builder, x: Column, weights: Column | None, half: int) -> tuple[Val, Val, Val]:
    """Return the scale of a group for integers -half to half - 1, the inverse scale of the search, and whether all are
    0.

    Without weights, the weight of a value is its square.
    """
    largest, magnitude = largest_magnitude(k, x)
    is_zero = magnitude < ALL_ZERO
    first = k.const(k.vf, -float(half)) / largest
    sum_lx, sum_l2 = _sums(k, x, weights, half, first)
    zero = k.const(k.vf, 0.0)
    start = k.select(sum_l2.equals(0.0), zero, sum_lx / sum_l2)
    scale, best, kept = k.var(start), k.var(start * sum_lx), k.var(first)

    def turn(factor: Val) -> None:
        inverse = factor / largest
        sum_lx, sum_l2 = _sums(k, x, weights, half, inverse)
        better = k.ir.and_((sum_l2 > 0.0).raw, (sum_lx * sum_lx > best.value * sum_l2).raw)
        found, is_better = sum_lx / sum_l2, Val(k, better)
        scale.set(k.select(is_better, found, scale.value))
        best.set(k.select(is_better, found * sum_lx, best.value))
        kept.set(k.select(is_better, inverse, kept.value))

    for sign in (-1, 1):
        with k.range(1, 10) as step:
            number = (step - 10 if sign < 0 else step).trunc(i32).to_float()
            turn(-k.splat(number * 0.1 + float(half)))
    return k.select(is_zero, zero, scale.value), kept.value, is_zero


def _sums(k: Builder, x: Column, weights: Column | None, half: int, inverse: Val) -> tuple[Val, Val]:
    """Return sum(w * x * l) and sum(w * l * l) with the integers l that an inverse scale gives."""
    sum_lx, sum_l2 = k.const(k.vf, 0.0), k.const(k.vf, 0.0)
    for at in range(x.count):
        value = x[at]
        weight = weights[at] if weights else value * value
        integer = nearest_between(k, inverse * value, -half, half - 1).to_float()
        sum_lx = sum_lx + weight * value * integer
        sum_l2 = sum_l2 + weight * integer * integer
    return sum_lx, sum_l2
