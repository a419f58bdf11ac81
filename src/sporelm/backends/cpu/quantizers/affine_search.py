"""The search of quant/scale_search.py for the scale and minimum of groups, one block a lane."""

from collections.abc import Sequence
from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val, Var, i32
from sporelm.backends.cpu.quantizers.lane_arithmetic import nearest_step, where
from sporelm.backends.cpu.quantizers.lane_columns import Column

UNROLL = 4


class ScaleCandidates(NamedTuple):
    """The inverse scales tried, see `quant.scale_search.ScaleCandidates`."""

    first: float
    delta: float
    steps: int


FINE_CANDIDATES = ScaleCandidates(-0.9, 0.05, 37)  # with importance


class LaneGroup(NamedTuple):
    """A group of every block."""

    x: Column
    weights: Column
    integers: Column  # scratch memory


class AffineResult(NamedTuple):
    """Vectors; see `quant.scale_search.AffineFit`."""

    scale: Val
    drop: Val
    inverse: Val
    base: Val


class AffineState(NamedTuple):
    """The state of the search of one group."""

    group: LaneGroup
    highest: Val
    sum_w: Val
    sum_x: Val
    minimum: Var
    scale: Var
    error: Var
    inverse: Var
    base: Var


class AffineOptions(NamedTuple):
    """The parameters that all groups of a format share: the largest integer, the tries, and the error."""

    levels: int
    tries: ScaleCandidates
    by_magnitude: bool = False


def search_affine(k: Builder, groups: Sequence[LaneGroup], ways: AffineOptions) -> list[AffineResult]:
    """Search the scale and minimum of each group. Several groups run at once, because sums that depend on each
    other leave the CPU idle."""
    fits = _start(k, groups, ways)
    with k.range(ways.tries.steps) as step:
        factor = step.trunc(i32).to_float() * ways.tries.delta + ways.tries.first + float(ways.levels)
        factors = k.splat(factor)
        inverses = [factors / _span(k, fit) for fit in fits]
        sums = _round(k, fits, inverses, ways)
        candidates = [_fit_candidate(k, fit, *three) for fit, three in zip(fits, sums, strict=True)]
        errors = _errors(k, fits, [(scale, minimum) for _, scale, minimum in candidates], ways)
        for fit, inverse, (possible, scale, minimum), error in zip(fits, inverses, candidates, errors, strict=True):
            better = possible & (error < fit.error.value)
            new = ((fit.error, error), (fit.scale, scale), (fit.inverse, inverse), (fit.base, fit.minimum.value))
            for kept, value in (*new, (fit.minimum, minimum)):
                kept.set(k.select(better, value, kept.value))
    return [_result_of(k, fit) for fit in fits]


def _result_of(k: Builder, fit: AffineState) -> AffineResult:
    return AffineResult(fit.scale.value, -fit.minimum.value, fit.inverse.value, fit.base.value)


def _span(k: Builder, fit: AffineState) -> Val:
    """Return maximum - minimum, or 1 where that is 0: then all integers are 0, and least squares cannot fit them."""
    span = fit.highest - fit.minimum.value
    return where(k, span.equals(0.0), 1.0, span)


def _start(k: Builder, groups: Sequence[LaneGroup], ways: AffineOptions) -> list[AffineState]:
    """Start each group with its minimum, 0 if all values are positive, and its maximum."""
    lows, highs = ([k.var(group.x[0]) for group in groups] for _ in range(2))
    sums_w, sums_x = ([k.zero(k.vf) for _ in groups] for _ in range(2))
    with k.range(0, groups[0].x.count, UNROLL) as start:
        for at in range(UNROLL):
            for group, low, high, sum_w, sum_x in zip(groups, lows, highs, sums_w, sums_x, strict=True):
                x, weight = group.x[start + at], group.weights[start + at]
                low.set(k.min(x, low.value))
                high.set(k.max(x, high.value))
                sum_w.set(sum_w.value + weight)
                sum_x.set(sum_x.value + weight * x)
    fits = []
    for group, low, high, sum_w, sum_x in zip(groups, lows, highs, sums_w, sums_x, strict=True):
        low.set(where(k, low.value > 0.0, 0.0, low.value))
        state = [k.zero(k.vf) for _ in range(4)]
        fits.append(AffineState(group, high.value, sum_w.value, sum_x.value, low, *state))
    inverses = [k.const(k.vf, ways.levels) / _span(k, fit) for fit in fits]
    _round(k, fits, inverses, ways)
    scales = [k.const(k.vf, 1.0) / inverse for inverse in inverses]
    errors = _errors(k, fits, [(scale, fit.minimum.value) for fit, scale in zip(fits, scales, strict=True)], ways)
    for fit, inverse, scale, error in zip(fits, inverses, scales, errors, strict=True):
        constant = fit.highest.equals(fit.minimum.value)
        fit.scale.set(where(k, constant, 0.0, scale))
        fit.error.set(error)
        fit.inverse.set(inverse)
        fit.base.set(fit.minimum.value)
    return fits


def _round(k: Builder, fits: list[AffineState], inverses: list[Val], ways: AffineOptions) -> list[list[Val]]:
    """Round every group; return the sums of weight * integer, weight * integer^2 and weight * integer * value of
    each."""
    sums = [[k.zero(k.vf) for _ in range(3)] for _ in fits]
    minimums = [fit.minimum.value for fit in fits]
    with k.range(0, fits[0].group.x.count, UNROLL) as start:
        for at in range(UNROLL):
            for fit, minimum, inverse, (sum_l, sum_l2, sum_xl) in zip(fits, minimums, inverses, sums, strict=True):
                x = fit.group.x[start + at]
                integer = nearest_step(k, (x - minimum) * inverse, 0, ways.levels)
                fit.group.integers[start + at] = integer
                weighted = fit.group.weights[start + at] * integer
                sum_l.set(sum_l.value + weighted)
                sum_l2.set(sum_l2.value + weighted * integer)
                sum_xl.set(sum_xl.value + weighted * x)
    return [[part.value for part in three] for three in sums]


def _fit_candidate(k: Builder, fit: AffineState, sum_l: Val, sum_l2: Val, sum_xl: Val) -> tuple[Val, Val, Val]:
    """Return whether a least-squares fit exists, its scale and its minimum, which is not above 0."""
    determinant = fit.sum_w * sum_l2 - sum_l * sum_l
    scale = (fit.sum_w * sum_xl - fit.sum_x * sum_l) / determinant
    minimum = (sum_l2 * fit.sum_x - sum_l * sum_xl) / determinant
    above = minimum > 0.0
    scale, minimum = where(k, above, sum_xl / sum_l2, scale), where(k, above, 0.0, minimum)
    return determinant > 0.0, scale, minimum


def _errors(k: Builder, fits: list[AffineState], lines: list[tuple[Val, Val]], ways: AffineOptions) -> list[Val]:
    """Return the weighted error of each group's integers with a scale and a minimum."""
    sums = [k.zero(k.vf) for _ in fits]
    with k.range(0, fits[0].group.x.count, UNROLL) as start:
        for at in range(UNROLL):
            for fit, (scale, minimum), total in zip(fits, lines, sums, strict=True):
                group = fit.group
                off = scale * group.integers[start + at] + minimum - group.x[start + at]
                size = k.fabs(off) if ways.by_magnitude else off * off
                total.set(total.value + size * group.weights[start + at])
    return [total.value for total in sums]
