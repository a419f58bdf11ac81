"""The searches of quant/coordinate_search.py, one block a lane: integers change one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val, Var, i32
from sporelm.backends.cpu.quantizers.lane_arithmetic import any_lane, where
from sporelm.backends.cpu.quantizers.lane_columns import Column, nearest_between, nearest_int
from sporelm.backends.cpu.quantizers.symmetric_search import STEP, TINY, largest_value

ROUNDS = 5


@contextmanager
def rounds(k: Builder) -> Iterator[Var]:
    """Run at most ROUNDS iterations of a loop; stop when its variable, i1 lanes of changes, is not set."""
    left = k.var(k.index(ROUNDS))
    changed = k.var(k.const(k.vi, 1))

    def goes_on() -> Val:
        return k.both(left.value > 0, lambda: any_lane(k, changed.value.differs(0)))

    with k.loop_while(goes_on):
        left.set(left.value - 1)
        changed.set(k.const(k.vi, 0))
        yield changed


class SearchGroup(NamedTuple):
    """A group of every block."""

    x: Column
    integers: Column  # f32, the result


class FitSums(NamedTuple):
    """Sums of weight * value * integer, and of weight * integer^2."""

    lx: Var
    l2: Var


def search_symmetric_coordinates(k: Builder, groups: Sequence[SearchGroup], half: int) -> list[Val]:
    """Search the scale of each group for integers -half to half - 1, in place; the weight of a value is its square.

    Groups of zeros have scale 0 and integers -half. Several groups run at once, because each integer depends on the
    previous one.
    """
    largest = [largest_value(k, group.x) for group in groups]
    first = [k.const(k.vf, -half) / value for value in largest]
    sums = [FitSums(k.zero(k.vf), k.zero(k.vf)) for _ in groups]
    size = groups[0].x.count
    with k.range(size) as at:
        for group, inverse, total in zip(groups, first, sums, strict=True):
            value = group.x[at]
            integer = nearest_between(k, inverse * value, -half, half - 1).to_float()
            group.integers[at] = integer
            weight = value * value
            total.lx.set(total.lx.value + weight * value * integer)
            total.l2.set(total.l2.value + weight * integer * integer)
    with rounds(k) as changed, k.range(size) as at:
        for group, total in zip(groups, sums, strict=True):
            changed.set(changed.value | _update_coordinate(k, group, total, at, half))
    scales = []
    for group, value, total in zip(groups, largest, sums, strict=True):
        is_zero = k.fabs(value) < TINY
        with k.range(size) as at:
            group.integers[at] = where(k, is_zero, float(-half), group.integers[at])
        fitted = where(k, total.l2.value > 0.0, total.lx.value / total.l2.value, 0.0)
        scales.append(where(k, is_zero, 0.0, fitted))
    return scales


def _update_coordinate(k: Builder, group: SearchGroup, sums: FitSums, at: Val, half: int) -> Val:
    """Set one value's integer to the best one for the scale of the other values; lanes with a change are not 0."""
    value, integer = group.x[at], group.integers[at]
    weight = value * value
    product = weight * value
    lx, l2 = sums.lx.value - product * integer, sums.l2.value - weight * integer * integer
    new = nearest_between(k, value * l2 / lx, -half, half - 1).to_float()
    wanted = (lx > 0.0) & new.differs(integer)
    lx, l2 = lx + product * new, l2 + weight * new * new
    wanted = wanted & (l2 > 0.0) & (lx * lx * sums.l2.value > sums.lx.value * sums.lx.value * l2)
    group.integers[at] = k.select(wanted, new, integer)
    sums.lx.set(k.select(wanted, lx, sums.lx.value))
    sums.l2.set(k.select(wanted, l2, sums.l2.value))
    return k.select(wanted, k.const(k.vi, 1), k.const(k.vi, 0))


def search_unsigned_coordinates(k: Builder, x: Column, weights: Column, integers: Column, levels: int) -> Val:
    """Search the scale of a group for integers 0 to `levels`, which stay in `integers` as f32."""
    highest = k.zero(k.vf)
    with k.range(x.count) as at:
        highest.set(k.max(x[at], highest.value))
    inverse = k.var(k.const(k.vf, levels) / highest.value)
    least = k.var(_error(k, x, weights, inverse.value, lambda t: (nearest_int(k, t) & 0xFF).to_float()))
    with k.range(8) as number:
        step = number - 4
        step = k.select(step >= 0, step + 1, step).trunc(i32).to_float()
        tried = k.splat(step * STEP + float(levels)) / highest.value
        error = _error(k, x, weights, tried, lambda t: k.min(nearest_int(k, t), levels).to_float())
        better = error < least.value
        least.set(k.select(better, error, least.value))
        inverse.set(k.select(better, tried, inverse.value))
    sum_lx, sum_l2 = k.zero(k.vf), k.zero(k.vf)
    with k.range(x.count) as at:
        value, weight = x[at], weights[at]
        limited = k.min(nearest_int(k, inverse.value * value), levels)
        integer = limited.to_float()
        integers[at] = (limited & 0xFF).to_float()
        sum_lx.set(sum_lx.value + weight * value * integer)
        sum_l2.set(sum_l2.value + weight * integer * integer)
    _improve_unsigned(k, x, weights, integers, levels, sum_lx, sum_l2)
    some = highest.value >= TINY
    with k.range(x.count) as at:
        integers[at] = where(k, some, integers[at], 0.0)
    return where(k, (sum_l2.value > 0.0) & some, sum_lx.value / sum_l2.value, 0.0)


def _improve_unsigned(
    k: Builder, x: Column, weights: Column, integers: Column, levels: int, sum_lx: Var, sum_l2: Var
) -> None:
    """Set each value's integer in turn to the best one for the scale of the other values."""
    with rounds(k) as changed, k.range(x.count) as at:
        value, weight, integer = x[at], weights[at], integers[at]
        product = weight * value
        lx, l2 = sum_lx.value - product * integer, sum_l2.value - weight * integer * integer
        limited = k.min(nearest_int(k, value * l2 / lx), levels)
        new = limited.to_float()
        wanted = (lx > 0.0) & (l2 > 0.0) & new.differs(integer)
        lx, l2 = lx + product * new, l2 + weight * new * new
        wanted = wanted & (lx * lx * sum_l2.value > sum_lx.value * sum_lx.value * l2)
        integers[at] = k.select(wanted, (limited & 0xFF).to_float(), integer)
        sum_lx.set(k.select(wanted, lx, sum_lx.value))
        sum_l2.set(k.select(wanted, l2, sum_l2.value))
        changed.set(changed.value | k.select(wanted, k.const(k.vi, 1), k.const(k.vi, 0)))


def _error(k: Builder, x: Column, weights: Column, inverse: Val, round_: Callable[[Val], Val]) -> Val:
    """Return sum(weights * (x - integers / inverse)^2)."""
    scale = k.const(k.vf, 1.0) / inverse
    total = k.zero(k.vf)
    with k.range(x.count) as at:
        value = x[at]
        off = value - scale * round_(inverse * value)
        total.set(total.value + weights[at] * off * off)
    return total.value
