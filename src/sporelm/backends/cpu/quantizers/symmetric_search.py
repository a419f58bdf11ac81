"""The search of quant/scale_search.py for the scale of groups around zero, one block a lane, several tries at once."""

from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val, i32
from sporelm.backends.cpu.quantizers.lane_arithmetic import nearest_step, where
from sporelm.backends.cpu.quantizers.lane_columns import Column, nearest_between

TINY = 1e-15  # a group with a smaller largest magnitude counts as zero
STEP = 0.1  # the step between inverse scales that are tried, in integers
CANDIDATES_AT_ONCE = 3  # tries with independent sums, which share loaded values
CANDIDATES = 18  # after the first one


class SymmetricResult(NamedTuple):
    """Vectors; see `quant.scale_search.SignedFit`."""

    scale: Val
    inverse: Val
    is_zero: Val  # i1


class WeightedGroup(NamedTuple):
    """The values of a group, their weights, and the products of both."""

    x: Column
    weights: Column
    products: Column


def largest_value(k: Builder, x: Column) -> Val:
    """Return the value of largest magnitude, the first of equal ones; NaN is ignored."""
    largest, magnitude = k.zero(k.vf), k.zero(k.vf)
    with k.range(x.count) as at:
        value = x[at]
        size = k.fabs(value)
        larger = size > magnitude.value
        largest.set(k.select(larger, value, largest.value))
        magnitude.set(k.select(larger, size, magnitude.value))
    return largest.value


def weigh_by_square(k: Builder, group: WeightedGroup) -> None:
    """Write the squares of values as their weights, and the products."""
    with k.range(group.x.count) as at:
        value = group.x[at]
        square = value * value
        group.weights[at] = square
        group.products[at] = square * value


def multiply_weights(k: Builder, group: WeightedGroup) -> None:
    """Write the products."""
    with k.range(group.x.count) as at:
        group.products[at] = group.weights[at] * group.x[at]


def search_symmetric_groups(
    k: Builder, group: WeightedGroup, half: int, *, any_values: bool = False
) -> SymmetricResult:
    """Search the scale of a group for integers -half to half - 1; `any_values`: some may be infinite or NaN."""
    largest = largest_value(k, group.x)
    inverse = k.const(k.vf, -half) / largest
    ((sum_lx, sum_l2),) = _sums(k, group, [inverse], half, any_values)
    scale = k.var(where(k, sum_l2.equals(0.0), 0.0, sum_lx / sum_l2))
    best, kept = k.var(scale.value * sum_lx), k.var(inverse)
    with k.range(0, CANDIDATES, CANDIDATES_AT_ONCE) as start:
        inverses = []
        for number in range(CANDIDATES_AT_ONCE):
            step = start + (number - CANDIDATES // 2)
            step = k.select(step >= 0, step + 1, step).trunc(i32).to_float()
            inverses.append(k.splat(-(step * STEP + float(half))) / largest)
        for inverse, (sum_lx, sum_l2) in zip(inverses, _sums(k, group, inverses, half, any_values), strict=True):
            better = (sum_l2 > 0.0) & (sum_lx * sum_lx > best.value * sum_l2)
            fitted = sum_lx / sum_l2
            for state, value in ((scale, fitted), (best, fitted * sum_lx), (kept, inverse)):
                state.set(k.select(better, value, state.value))
    is_zero = k.fabs(largest) < TINY
    return SymmetricResult(where(k, is_zero, 0.0, scale.value), kept.value, is_zero)


def _sums(k: Builder, group: WeightedGroup, inverses: list[Val], half: int, any_values: bool) -> list[tuple[Val, Val]]:
    """Return the sums of weight * value * integer and weight * integer^2 for each inverse scale."""
    sums = [(k.zero(k.vf), k.zero(k.vf)) for _ in inverses]
    with k.range(0, group.x.count, 2) as start:
        for at in range(2):
            x, weight, product = (part[start + at] for part in group)
            for inverse, (sum_lx, sum_l2) in zip(inverses, sums, strict=True):
                if any_values:
                    integer = nearest_between(k, x * inverse, -half, half - 1).to_float()
                else:
                    integer = nearest_step(k, x * inverse, -half, half - 1)
                sum_lx.set(sum_lx.value + product * integer)
                sum_l2.set(sum_l2.value + weight * integer * integer)
    return [(sum_lx.value, sum_l2.value) for sum_lx, sum_l2 in sums]


def symmetric_integer(k: Builder, x: Val, found: SymmetricResult, half: int) -> Val:
    """Return the integer + half of the search for a value: i32."""
    integer = nearest_between(k, x * found.inverse, -half, half - 1) + half
    return k.select(found.is_zero, k.const(k.vi, 0), integer)
