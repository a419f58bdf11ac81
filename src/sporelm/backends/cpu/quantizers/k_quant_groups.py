"""Q4_K and Q5_K, one block a lane: eight groups with 6-bit scales and minimums, as quant/superblocks.py rounds them."""

from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.affine_search import FINE_CANDIDATES, AffineOptions, LaneGroup, search_affine
from sporelm.backends.cpu.quantizers.bit_packing import sum_column, sum_of_squares, weigh
from sporelm.backends.cpu.quantizers.coordinate_search import search_unsigned_coordinates
from sporelm.backends.cpu.quantizers.lane_arithmetic import any_lane, to_integers, where
from sporelm.backends.cpu.quantizers.lane_columns import (
    Column,
    QuantizerWorkspace,
    nearest_between,
    nearest_int,
    pack_bits,
)

GROUPS, GROUPS_AT_ONCE = 8, 4
SIX_BITS = 63


class GroupResults(NamedTuple):
    """[groups] each; see `quant.scale_search.AffineFit`."""

    scale: Column
    drop: Column
    inverse: Column
    base: Column
    weight: Column  # the sum of a group's weights


def round_in_groups(
    work: QuantizerWorkspace, x: Column, weights: Column | None, ways: AffineOptions, words: Column
) -> Column:
    """Write factors, scales and minimums, four words; return the integers, i32 [256]."""
    k = work.k
    if weights is not None:
        weigh(k, x, weights, 2.0)
        ways = ways._replace(tries=FINE_CANDIDATES)
    found = search_groups(work, x, weights, ways, GROUPS)
    scales, minimums = work.integers(GROUPS), work.integers(GROUPS)
    pairs = ((found.scale, scales), (found.drop, minimums))
    if weights is None:
        factors = [_quantize_to_largest(k, *pair) for pair in pairs]
    else:
        factors = [_quantize_fitted(work, *pair, found.weight, ways.levels) for pair in pairs]
    halves = [work.half(factor) for factor in factors]
    words[0] = halves[0] | (halves[1] << 16)
    _pack_scales(scales, minimums, words)
    integers = work.integers(x.count)
    stored = [work.from_half(half) for half in halves]
    round_with_stored_scales(
        k, x, found, ScaledNumbers(scales, stored[0]), ScaledNumbers(minimums, stored[1]), ways.levels, integers
    )
    return integers


def search_groups(
    work: QuantizerWorkspace, x: Column, weights: Column | None, ways: AffineOptions, groups: int
) -> GroupResults:
    """Search every group. Without weights, the weight of a value is its magnitude, plus the root mean
    square of its group unless `by_magnitude`."""
    k, size = work.k, x.count // groups
    found = GroupResults(*(work.floats(groups) for _ in GroupResults._fields))
    own = None if weights is not None else work.floats(GROUPS_AT_ONCE * size)
    scratch = work.floats(GROUPS_AT_ONCE * size)
    with k.range(0, groups, GROUPS_AT_ONCE) as first:
        run = []
        for number in range(GROUPS_AT_ONCE):
            values = x.slice((first + number) * size, size)
            if own is not None:
                given = own.slice(number * size, size)
                _weigh_by_magnitude(k, values, given, ways)
            elif weights is not None:
                given = weights.slice((first + number) * size, size)
                found.weight[first + number] = sum_column(k, given)
            run.append(LaneGroup(values, given, scratch.slice(number * size, size)))
        for number, one in enumerate(search_affine(k, run, ways)):
            for column, value in zip(found, one, strict=False):
                column[first + number] = value
    return found


def _weigh_by_magnitude(k: Builder, x: Column, weights: Column, ways: AffineOptions) -> None:
    more = k.const(k.vf, 0.0) if ways.by_magnitude else k.sqrt(sum_of_squares(k, x) / float(x.count))
    with k.range(x.count) as at:
        size = k.fabs(x[at])
        weights[at] = size if ways.by_magnitude else size + more


def _quantize_to_largest(k: Builder, numbers: Column, out: Column) -> Val:
    """Return numbers as 0 to 63 parts of the largest, and the factor of a part."""
    largest = k.zero(k.vf)
    with k.range(GROUPS) as group:
        largest.set(k.max(numbers[group], largest.value))
    inverse = where(k, largest.value > 0.0, k.const(k.vf, SIX_BITS) / largest.value, 0.0)
    with k.range(GROUPS) as group:
        out[group] = k.min(nearest_int(k, inverse * numbers[group]) & 0xFF, SIX_BITS)
    return largest.value / float(SIX_BITS)


def _quantize_fitted(work: QuantizerWorkspace, numbers: Column, out: Column, weights: Column, levels: int) -> Val:
    """Return numbers as 0 to 63 parts by the best fit; ggml clamps them for Q5_K and not for Q4_K."""
    k, fitted = work.k, work.floats(GROUPS)
    factor = search_unsigned_coordinates(k, numbers, weights, fitted, SIX_BITS)
    with k.range(GROUPS) as group:
        part = to_integers(k, fitted[group])
        out[group] = k.min(part, SIX_BITS) if levels > 15 else part
    return factor


def _pack_scales(scales: Column, minimums: Column, words: Column) -> None:
    """Write words 1 to 3 in the layout of packing.join_scales; the scales and minimums become the packed values."""
    upper = [[part[g] | (part[g + 4] >> 4 << 6 & 0xFF) for g in range(4)] for part in (scales, minimums)]
    lower = [(scales[g] & 15) | (minimums[g] & 15) << 4 for g in range(4, 8)]
    for number, bytes_ in enumerate((*upper, lower), 1):
        words[number] = pack_bits(bytes_)
    for part, bytes_, right in zip((scales, minimums), upper, (0, 4), strict=True):
        for g in range(4):
            part[g] = bytes_[g] & SIX_BITS
            part[g + 4] = (lower[g] >> right & 15) | (bytes_[g] >> 6 << 4)


class ScaledNumbers(NamedTuple):
    """Numbers of groups, i32 [groups], and the f32 factor of each block: number * factor."""

    numbers: Column
    factor: Val


def round_with_stored_scales(
    k: Builder,
    x: Column,
    found: GroupResults,
    steps: ScaledNumbers,
    drops: ScaledNumbers,
    levels: int,
    integers: Column,
) -> None:
    """Round all values again with the stored scales; where a scale became 0, keep the integers of the search."""
    size = x.count // steps.numbers.count
    with k.range(steps.numbers.count) as group:
        step, drop = (part.numbers[group].to_float() * part.factor for part in (steps, drops))
        values, out = x.slice(group * size, size), integers.slice(group * size, size)
        with k.range(size) as at:
            out[at] = nearest_between(k, (values[at] + drop) / step, 0, levels)
        lost = step.equals(0.0)
        with k.when(any_lane(k, lost)), k.range(size) as at:
            before = nearest_between(k, (values[at] - found.base[group]) * found.inverse[group], 0, levels)
            out[at] = k.select(lost, before, out[at])
