"""Q4_K and Q5_K, one block a lane: eight groups with 6-bit scales and minimums, as quant/superblocks.py rounds them."""

from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.above_minimum import FINE, Group, Ways, search_above_minimum
from sporelm.backends.cpu.quantizers.columns import Column, Work, nearest_between, nearest_int, packed
from sporelm.backends.cpu.quantizers.rounding import any_lane, to_integers, where
from sporelm.backends.cpu.quantizers.turns import search_above_zero
from sporelm.backends.cpu.quantizers.words import sum_of, sum_of_squares, weigh

GROUPS, AT_ONCE = 8, 4
SIX_BITS = 63


class Searched(NamedTuple):
    """[groups] each; see quant.search.AboveMinimum."""

    scale: Column
    drop: Column
    inverse: Column
    base: Column
    weight: Column  # the sum of a group's weights


def round_in_groups(work: Work, x: Column, weights: Column | None, ways: Ways, words: Column) -> Column:
    """Write factors, scales and minimums, four words; returns the integers, i32 [256]."""
    k = work.k
    if weights is not None:
        weigh(k, x, weights, 2.0)
        ways = ways._replace(tries=FINE)
    found = search_groups(work, x, weights, ways, GROUPS)
    scales, minimums = work.integers(GROUPS), work.integers(GROUPS)
    pairs = ((found.scale, scales), (found.drop, minimums))
    if weights is None:
        factors = [_parts_of_largest(k, *pair) for pair in pairs]
    else:
        factors = [_fitted_parts(work, *pair, found.weight, ways.levels) for pair in pairs]
    halves = [work.half(factor) for factor in factors]
    words[0] = halves[0] | (halves[1] << 16)
    _pack_scales(scales, minimums, words)
    integers = work.integers(x.count)
    stored = [work.from_half(half) for half in halves]
    round_again(k, x, found, Parts(scales, stored[0]), Parts(minimums, stored[1]), ways.levels, integers)
    return integers


def search_groups(work: Work, x: Column, weights: Column | None, ways: Ways, groups: int) -> Searched:
    """Search every group; without weights values weigh their magnitude, and unless `by_magnitude` more."""
    k, size = work.k, x.count // groups
    found = Searched(*(work.floats(groups) for _ in Searched._fields))
    own = None if weights is not None else work.floats(AT_ONCE * size)
    scratch = work.floats(AT_ONCE * size)
    with k.range(0, groups, AT_ONCE) as first:
        run = []
        for number in range(AT_ONCE):
            values = x.part((first + number) * size, size)
            if own is not None:
                given = own.part(number * size, size)
                _weigh_by_magnitude(k, values, given, ways)
            elif weights is not None:
                given = weights.part((first + number) * size, size)
                found.weight[first + number] = sum_of(k, given)
            run.append(Group(values, given, scratch.part(number * size, size)))
        for number, one in enumerate(search_above_minimum(k, run, ways)):
            for column, value in zip(found, one, strict=False):
                column[first + number] = value
    return found


def _weigh_by_magnitude(k: Builder, x: Column, weights: Column, ways: Ways) -> None:
    more = k.const(k.vf, 0.0) if ways.by_magnitude else k.sqrt(sum_of_squares(k, x) / float(x.count))
    with k.range(x.count) as at:
        size = k.fabs(x[at])
        weights[at] = size if ways.by_magnitude else size + more


def _parts_of_largest(k: Builder, numbers: Column, out: Column) -> Val:
    """Numbers as 0 to 63 parts of the largest; the factor of a part."""
    largest = k.zero(k.vf)
    with k.range(GROUPS) as group:
        largest.set(k.max(numbers[group], largest.value))
    inverse = where(k, largest.value > 0.0, k.const(k.vf, SIX_BITS) / largest.value, 0.0)
    with k.range(GROUPS) as group:
        out[group] = k.min(nearest_int(k, inverse * numbers[group]) & 0xFF, SIX_BITS)
    return largest.value / float(SIX_BITS)


def _fitted_parts(work: Work, numbers: Column, out: Column, weights: Column, levels: int) -> Val:
    """Numbers as 0 to 63 parts of what fits them best; ggml limits them for Q5_K and not for Q4_K."""
    k, fitted = work.k, work.floats(GROUPS)
    factor = search_above_zero(k, numbers, weights, fitted, SIX_BITS)
    with k.range(GROUPS) as group:
        part = to_integers(k, fitted[group])
        out[group] = k.min(part, SIX_BITS) if levels > 15 else part
    return factor


def _pack_scales(scales: Column, minimums: Column, words: Column) -> None:
    """Words 1 to 3 as packing.join_scales lays them out; what was packed is what the scales and minimums then are."""
    upper = [[part[g] | (part[g + 4] >> 4 << 6 & 0xFF) for g in range(4)] for part in (scales, minimums)]
    lower = [(scales[g] & 15) | (minimums[g] & 15) << 4 for g in range(4, 8)]
    for number, bytes_ in enumerate((*upper, lower), 1):
        words[number] = packed(bytes_)
    for part, bytes_, right in zip((scales, minimums), upper, (0, 4), strict=True):
        for g in range(4):
            part[g] = bytes_[g] & SIX_BITS
            part[g + 4] = (lower[g] >> right & 15) | (bytes_[g] >> 6 << 4)


class Parts(NamedTuple):
    """Numbers of groups, i32 [groups], and the f32 factor of each block: number * factor."""

    numbers: Column
    factor: Val


def round_again(
    k: Builder, x: Column, found: Searched, steps: Parts, drops: Parts, levels: int, integers: Column
) -> None:
    """Round all values with the scales as they are stored; where one became 0, the search's integers stay."""
    size = x.count // steps.numbers.count
    with k.range(steps.numbers.count) as group:
        step, drop = (part.numbers[group].to_float() * part.factor for part in (steps, drops))
        values, out = x.part(group * size, size), integers.part(group * size, size)
        with k.range(size) as at:
            out[at] = nearest_between(k, (values[at] + drop) / step, 0, levels)
        lost = step.equals(0.0)
        with k.when(any_lane(k, lost)), k.range(size) as at:
            before = nearest_between(k, (values[at] - found.base[group]) * found.inverse[group], 0, levels)
            out[at] = k.select(lost, before, out[at])
