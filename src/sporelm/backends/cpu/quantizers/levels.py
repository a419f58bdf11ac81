"""Codes of uneven levels, and the search for the scale of a run of them: `quant.levels` has the meaning."""

from sporelm.backends.cpu.jit import Builder, Val, i32
from sporelm.backends.cpu.quantizers.around_zero import ALL_ZERO, largest_magnitude
from sporelm.backends.cpu.quantizers.columns import Column
from sporelm.backends.cpu.quantizers.words import sum_of_squares
from sporelm.quant.levels import CURVED, E2M1_DOUBLED, TRIES

LEVELS: list[float] = CURVED.tolist()


def nearest_curved(k: Builder, x: Val) -> Val:
    """The level of CURVED nearest to each number, the upper one half-way; the last for NaN."""
    return _picked(k, x, [k.const(k.vf, level) for level in LEVELS])


def code_curved(k: Builder, x: Val) -> Val:
    """The code of that level, i32."""
    return _picked(k, x, [k.const(k.vi, code) for code in range(16)])


def _picked(k: Builder, x: Val, choices: list[Val]) -> Val:
    found = choices[15]
    for code in range(14, -1, -1):
        found = k.select(x < (LEVELS[code] + LEVELS[code + 1]) / 2, choices[code], found)
    return found


def search_curved_scale(k: Builder, x: Column, weights: Column | None) -> Val:
    """The scale of a run; without weights values weigh their square."""
    zero = k.const(k.vf, 0.0)
    extreme, magnitude = largest_magnitude(k, x)
    sum_x, sum_2 = _sums(k, x, weights, k.const(k.vf, 1.0) / (-extreme / LEVELS[0]))
    start = k.select(sum_2 > 0.0, sum_x / sum_2, zero)
    scale, best = k.var(start), k.var(start * sum_x)
    with k.range(-TRIES, TRIES + 1) as step:
        level = step.trunc(i32).to_float() + LEVELS[0]
        sum_x, sum_2 = _sums(k, x, weights, k.splat(level) / extreme)
        better = Val(k, k.ir.and_((sum_2 > 0.0).raw, (sum_x * sum_x > best.value * sum_2).raw))
        fitted = sum_x / sum_2
        scale.set(k.select(better, fitted, scale.value))
        best.set(k.select(better, fitted * sum_x, best.value))
    return k.select(magnitude < ALL_ZERO, zero, scale.value)


def _sums(k: Builder, x: Column, weights: Column | None, inverse: Val) -> tuple[Val, Val]:
    """sum(w * q * x) and sum(w * q * q) with the levels q nearest to x * inverse."""
    sum_x, sum_2 = k.zero(k.vf), k.zero(k.vf)
    with k.range(0, x.count, 4) as start:
        for at in range(4):
            value = x[start + at]
            level = nearest_curved(k, inverse * value)
            weighted = (weights[start + at] if weights else value * value) * level
            sum_x.set(sum_x.value + weighted * value)
            sum_2.set(sum_2.value + weighted * level)
    return sum_x.value, sum_2.value


def spread(k: Builder, x: Column, weights: Column) -> None:
    """Importance in `weights` becomes importance * sqrt(2 * mean square of the block + value^2)."""
    mean = sum_of_squares(k, x) * (2 / x.count)
    with k.range(x.count) as at:
        value = x[at]
        weights[at] = weights[at] * k.sqrt(mean + value * value)


def code_e2m1(k: Builder, x: Val, half_step: Val) -> Val:
    """The code of E2M1_DOUBLED whose number times the half step is nearest to x, of equal ones the first; i32."""
    best, found = k.fabs(x), k.const(k.vi, 0)
    for code, level in enumerate(E2M1_DOUBLED.tolist()):
        if level:
            error = k.fabs(half_step * level - x)
            better = error < best
            best, found = k.select(better, error, best), k.select(better, k.const(k.vi, code), found)
    return found
