"""Codes of uneven levels, and the search for the scale of a run of them: see `quant.nonuniform_levels`."""

from sporelm.backends.cpu.jit import Builder, Val, i32
from sporelm.backends.cpu.quantizers.bit_packing import sum_of_squares
from sporelm.backends.cpu.quantizers.lane_columns import Column
from sporelm.backends.cpu.quantizers.symmetric_rounding import ALL_ZERO, largest_magnitude
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED, IQ4_LEVELS, MAX_SEARCH_STEP

LEVELS: list[float] = IQ4_LEVELS.tolist()


def nearest_curved(k: Builder, x: Val) -> Val:
    """Return the IQ4 level nearest to each number, the upper one at a tie; the last for NaN."""
    return _select_nearest(k, x, [k.const(k.vf, level) for level in LEVELS])


def code_curved(k: Builder, x: Val) -> Val:
    """Return the code of the nearest IQ4 level, i32."""
    return _select_nearest(k, x, [k.const(k.vi, code) for code in range(16)])


def _select_nearest(k: Builder, x: Val, choices: list[Val]) -> Val:
    found = choices[15]
    for code in range(14, -1, -1):
        found = k.select(x < (LEVELS[code] + LEVELS[code + 1]) / 2, choices[code], found)
    return found


def search_curved_scale(k: Builder, x: Column, weights: Column | None) -> Val:
    """Search the scale of a run; without weights, the weight of a value is its square."""
    zero = k.const(k.vf, 0.0)
    extreme, magnitude = largest_magnitude(k, x)
    sum_x, sum_2 = _sums(k, x, weights, k.const(k.vf, 1.0) / (-extreme / LEVELS[0]))
    start = k.select(sum_2 > 0.0, sum_x / sum_2, zero)
    scale, best = k.var(start), k.var(start * sum_x)
    with k.range(-MAX_SEARCH_STEP, MAX_SEARCH_STEP + 1) as step:
        level = step.trunc(i32).to_float() + LEVELS[0]
        sum_x, sum_2 = _sums(k, x, weights, k.splat(level) / extreme)
        better = Val(k, k.ir.and_((sum_2 > 0.0).raw, (sum_x * sum_x > best.value * sum_2).raw))
        fitted = sum_x / sum_2
        scale.set(k.select(better, fitted, scale.value))
        best.set(k.select(better, fitted * sum_x, best.value))
    return k.select(magnitude < ALL_ZERO, zero, scale.value)


def _sums(k: Builder, x: Column, weights: Column | None, inverse: Val) -> tuple[Val, Val]:
    """Return sum(w * q * x) and sum(w * q * q) with the levels q nearest to x * inverse."""
    sum_x, sum_2 = k.zero(k.vf), k.zero(k.vf)
    with k.range(0, x.count, 4) as start:
        for at in range(4):
            value = x[start + at]
            level = nearest_curved(k, inverse * value)
            weighted = (weights[start + at] if weights else value * value) * level
            sum_x.set(sum_x.value + weighted * value)
            sum_2.set(sum_2.value + weighted * level)
    return sum_x.value, sum_2.value


def weigh_by_magnitude(k: Builder, x: Column, weights: Column) -> None:
    """Replace importance in `weights` by importance * sqrt(2 * mean square of the block + value^2)."""
    mean = sum_of_squares(k, x) * (2 / x.count)
    with k.range(x.count) as at:
        value = x[at]
        weights[at] = weights[at] * k.sqrt(mean + value * value)


def code_e2m1(k: Builder, x: Val, half_step: Val) -> Val:
    """Return the code of E2M1_DOUBLED whose number times the half step is nearest to x, the first of equal ones;
    i32."""
    best, found = k.fabs(x), k.const(k.vi, 0)
    for code, level in enumerate(E2M1_DOUBLED.tolist()):
        if level:
            error = k.fabs(half_step * level - x)
            better = error < best
            best, found = k.select(better, error, best), k.select(better, k.const(k.vi, code), found)
    return found
