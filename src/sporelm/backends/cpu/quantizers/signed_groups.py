"""The search of quant/search.py for the scale of groups around zero, one block a lane, several tries at once."""

from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val, i32
from sporelm.backends.cpu.quantizers.columns import Column, nearest_between
from sporelm.backends.cpu.quantizers.rounding import nearest_step, where

TINY = 1e-15  # a group whose largest magnitude is below counts as zero
STEP = 0.1  # by which inverse scales that are tried differ, in integers
AT_ONCE = 3  # tries whose sums do not wait for each other; they share what is loaded
TRIES = 18  # after the first one


class Signed(NamedTuple):
    """Vectors; see quant.search.AroundZero."""

    scale: Val
    inverse: Val
    is_zero: Val  # i1


class Weighted(NamedTuple):
    """Values of a group, their weights, and the products of both."""

    x: Column
    weights: Column
    products: Column


def largest_value(k: Builder, x: Column) -> Val:
    """The value of largest magnitude, of equal ones the first; NaN does not count."""
    largest, magnitude = k.zero(k.vf), k.zero(k.vf)
    with k.range(x.count) as at:
        value = x[at]
        size = k.fabs(value)
        larger = size > magnitude.value
        largest.set(k.select(larger, value, largest.value))
        magnitude.set(k.select(larger, size, magnitude.value))
    return largest.value


def weigh_by_square(k: Builder, group: Weighted) -> None:
    """Write squares of values as their weights, and the products."""
    with k.range(group.x.count) as at:
        value = group.x[at]
        square = value * value
        group.weights[at] = square
        group.products[at] = square * value


def multiply_weights(k: Builder, group: Weighted) -> None:
    """Write the products."""
    with k.range(group.x.count) as at:
        group.products[at] = group.weights[at] * group.x[at]


def search_signed(k: Builder, group: Weighted, half: int, *, any_values: bool = False) -> Signed:
    """The scale of a group for integers -half to half - 1; `any_values`: some may be infinite or NaN."""
    largest = largest_value(k, group.x)
    inverse = k.const(k.vf, -half) / largest
    ((sum_lx, sum_l2),) = _sums(k, group, [inverse], half, any_values)
    scale = k.var(where(k, sum_l2.equals(0.0), 0.0, sum_lx / sum_l2))
    best, kept = k.var(scale.value * sum_lx), k.var(inverse)
    with k.range(0, TRIES, AT_ONCE) as start:
        inverses = []
        for number in range(AT_ONCE):
            step = start + (number - TRIES // 2)
            step = k.select(step >= 0, step + 1, step).trunc(i32).to_float()
            inverses.append(k.splat(-(step * STEP + float(half))) / largest)
        for inverse, (sum_lx, sum_l2) in zip(inverses, _sums(k, group, inverses, half, any_values), strict=True):
            better = (sum_l2 > 0.0) & (sum_lx * sum_lx > best.value * sum_l2)
            fitted = sum_lx / sum_l2
            for state, value in ((scale, fitted), (best, fitted * sum_lx), (kept, inverse)):
                state.set(k.select(better, value, state.value))
    is_zero = k.fabs(largest) < TINY
    return Signed(where(k, is_zero, 0.0, scale.value), kept.value, is_zero)


def _sums(k: Builder, group: Weighted, inverses: list[Val], half: int, any_values: bool) -> list[tuple[Val, Val]]:
    """For each inverse scale the sums over weight * value * integer and weight * integer^2."""
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


def searched_integer(k: Builder, x: Val, found: Signed, half: int) -> Val:
    """The integer + half that the search had for a value: i32."""
    integer = nearest_between(k, x * found.inverse, -half, half - 1) + half
    return k.select(found.is_zero, k.const(k.vi, 0), integer)
