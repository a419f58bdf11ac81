"""Q3_K: three bits in sixteen groups with 6-bit scales, as quant/q3_k.py rounds them."""

from sporelm.backends.cpu.jit import Val
from sporelm.backends.cpu.quantizers.bit_packing import pack_pairs, pack_planes, sum_column, weigh
from sporelm.backends.cpu.quantizers.coordinate_search import SearchGroup, search_symmetric_coordinates
from sporelm.backends.cpu.quantizers.lane_arithmetic import to_integers, where
from sporelm.backends.cpu.quantizers.lane_columns import (
    Column,
    QuantizerWorkspace,
    nearest_between,
    nearest_int,
    pack_bits,
)
from sporelm.backends.cpu.quantizers.symmetric_search import (
    WeightedGroup,
    largest_value,
    multiply_weights,
    search_symmetric_groups,
    symmetric_integer,
)

SIZE, GROUPS, GROUPS_AT_ONCE = 16, 16, 4
HALF, MIDDLE = 4, 32


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k, words, factor = work.k, work.words(0, 27).column, work.halves(108)
    multiples = work.integers(GROUPS)
    integers = work.integers(x.count)  # first those of the search, then those for the stored scales
    if weights is None:
        factor[0] = work.half(_search_unweighted(work, x, integers, multiples))
    else:
        weigh(k, x, weights, 2.0)
        factor[0] = work.half(_search_weighted(work, x, weights, integers, multiples))
    stored = work.from_half(factor[0])
    with k.range(GROUPS) as group:
        step = multiples[group].to_float() * stored
        values, out = x.slice(group * SIZE, SIZE), integers.slice(group * SIZE, SIZE)
        lost = step.equals(0.0)
        with k.range(SIZE) as at:
            integer = nearest_between(k, values[at] / step, -HALF, HALF - 1) + HALF
            out[at] = k.select(lost, out[at], integer)
    pack_planes(k, integers, words.slice(0, 8), 2)
    pack_pairs(k, integers, words.slice(8, 16))
    _pack_scales(multiples, words.slice(24, 3))


def _search_unweighted(work: QuantizerWorkspace, x: Column, integers: Column, multiples: Column) -> Val:
    """Return integers and multiples without importance, and the factor of a multiple, whose largest is -32."""
    k = work.k
    scales, found = work.floats(GROUPS), work.floats(x.count)
    with k.range(0, GROUPS, GROUPS_AT_ONCE) as first:
        starts = [(first + number) * SIZE for number in range(GROUPS_AT_ONCE)]
        run = [SearchGroup(x.slice(start, SIZE), found.slice(start, SIZE)) for start in starts]
        for number, scale in enumerate(search_symmetric_coordinates(k, run, HALF)):
            scales[first + number] = scale
    with k.range(x.count) as at:
        integers[at] = to_integers(k, found[at]) + HALF
    largest = largest_value(k, scales)
    some = largest.differs(0.0)
    inverse = k.const(k.vf, -MIDDLE) / largest
    with k.range(GROUPS) as group:
        whole = (nearest_int(k, inverse * scales[group]) << 24).arithmetic_shift(24)  # int8 before clamping
        limited = k.min(k.max(whole, -MIDDLE), MIDDLE - 1)
        multiples[group] = k.select(some, limited, k.const(k.vi, -MIDDLE))
    return where(k, some, k.const(k.vf, 1.0) / inverse, 0.0)


def _search_weighted(work: QuantizerWorkspace, x: Column, weights: Column, integers: Column, multiples: Column) -> Val:
    """Return integers and multiples of weighted values, and the factor of a multiple."""
    k = work.k
    scales, sums, products = work.floats(GROUPS), work.floats(GROUPS), work.floats(SIZE)
    with k.range(GROUPS) as group:
        weighted = WeightedGroup(x.slice(group * SIZE, SIZE), weights.slice(group * SIZE, SIZE), products)
        sums[group] = sum_column(k, weighted.weights)
        multiply_weights(k, weighted)
        found = search_symmetric_groups(k, weighted, HALF)
        scales[group] = found.scale
        with k.range(SIZE) as at:
            integers[group * SIZE + at] = symmetric_integer(k, weighted.x[at], found, HALF)
    weighted = WeightedGroup(scales, sums, products)
    multiply_weights(k, weighted)
    fit = search_symmetric_groups(k, weighted, MIDDLE, any_values=True)
    with k.range(GROUPS) as group:
        multiples[group] = symmetric_integer(k, scales[group], fit, MIDDLE) - MIDDLE
    return fit.scale


def _pack_scales(multiples: Column, words: Column) -> None:
    """Write three words of 6-bit scales, as in quant/q3_k.py."""
    numbers = [(multiples[group] + MIDDLE) & 63 for group in range(GROUPS)]
    lower = [(numbers[g] & 15) | ((numbers[g + 8] & 15) << 4) for g in range(8)]
    upper = [pack_bits([numbers[column + 4 * row] >> 4 for row in range(4)], 2) for column in range(4)]
    for number, bytes_ in enumerate((lower[:4], lower[4:], upper)):
        words[number] = pack_bits(bytes_)
