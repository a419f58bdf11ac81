"""Q3_K: three bits in sixteen groups with 6-bit scales, as quant/q3_k.py rounds them."""

from sporelm.backends.cpu.jit import Val
from sporelm.backends.cpu.quantizers.columns import Column, Work, nearest_between, nearest_int, packed
from sporelm.backends.cpu.quantizers.rounding import to_integers, where
from sporelm.backends.cpu.quantizers.signed_groups import (
    Weighted,
    largest_value,
    multiply_weights,
    search_signed,
    searched_integer,
)
from sporelm.backends.cpu.quantizers.turns import Turn, search_in_turns
from sporelm.backends.cpu.quantizers.words import pack_pairs, pack_planes, sum_of, weigh

SIZE, GROUPS, AT_ONCE = 16, 16, 4
HALF, MIDDLE = 4, 32


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    k, words, factor = work.k, work.words(0, 27).column, work.halves(108)
    multiples = work.integers(GROUPS)
    integers = work.integers(x.count)  # first the search's, then those for the scales as they are stored
    if weights is None:
        factor[0] = work.half(_by_turns(work, x, integers, multiples))
    else:
        weigh(k, x, weights, 2.0)
        factor[0] = work.half(_by_weights(work, x, weights, integers, multiples))
    stored = work.from_half(factor[0])
    with k.range(GROUPS) as group:
        step = multiples[group].to_float() * stored
        values, out = x.part(group * SIZE, SIZE), integers.part(group * SIZE, SIZE)
        lost = step.equals(0.0)
        with k.range(SIZE) as at:
            integer = nearest_between(k, values[at] / step, -HALF, HALF - 1) + HALF
            out[at] = k.select(lost, out[at], integer)
    pack_planes(k, integers, words.part(0, 8), 2)
    pack_pairs(k, integers, words.part(8, 16))
    _pack_scales(multiples, words.part(24, 3))


def _by_turns(work: Work, x: Column, integers: Column, multiples: Column) -> Val:
    """Integers and multiples without importance; the factor of a multiple, of which the largest one is -32."""
    k = work.k
    scales, found = work.floats(GROUPS), work.floats(x.count)
    with k.range(0, GROUPS, AT_ONCE) as first:
        starts = [(first + number) * SIZE for number in range(AT_ONCE)]
        run = [Turn(x.part(start, SIZE), found.part(start, SIZE)) for start in starts]
        for number, scale in enumerate(search_in_turns(k, run, HALF)):
            scales[first + number] = scale
    with k.range(x.count) as at:
        integers[at] = to_integers(k, found[at]) + HALF
    largest = largest_value(k, scales)
    some = largest.differs(0.0)
    inverse = k.const(k.vf, -MIDDLE) / largest
    with k.range(GROUPS) as group:
        whole = (nearest_int(k, inverse * scales[group]) << 24).arithmetic_shift(24)  # int8 before it is limited
        limited = k.min(k.max(whole, -MIDDLE), MIDDLE - 1)
        multiples[group] = k.select(some, limited, k.const(k.vi, -MIDDLE))
    return where(k, some, k.const(k.vf, 1.0) / inverse, 0.0)


def _by_weights(work: Work, x: Column, weights: Column, integers: Column, multiples: Column) -> Val:
    """Integers and multiples of weighted values; the factor of a multiple."""
    k = work.k
    scales, sums, products = work.floats(GROUPS), work.floats(GROUPS), work.floats(SIZE)
    with k.range(GROUPS) as group:
        weighted = Weighted(x.part(group * SIZE, SIZE), weights.part(group * SIZE, SIZE), products)
        sums[group] = sum_of(k, weighted.weights)
        multiply_weights(k, weighted)
        found = search_signed(k, weighted, HALF)
        scales[group] = found.scale
        with k.range(SIZE) as at:
            integers[group * SIZE + at] = searched_integer(k, weighted.x[at], found, HALF)
    weighted = Weighted(scales, sums, products)
    multiply_weights(k, weighted)
    fit = search_signed(k, weighted, MIDDLE, any_values=True)
    with k.range(GROUPS) as group:
        multiples[group] = searched_integer(k, scales[group], fit, MIDDLE) - MIDDLE
    return fit.scale


def _pack_scales(multiples: Column, words: Column) -> None:
    """Three words of 6-bit scales, as quant/q3_k.py says."""
    numbers = [(multiples[group] + MIDDLE) & 63 for group in range(GROUPS)]
    lower = [(numbers[g] & 15) | ((numbers[g + 8] & 15) << 4) for g in range(8)]
    upper = [packed([numbers[column + 4 * row] >> 4 for row in range(4)], 2) for column in range(4)]
    for number, bytes_ in enumerate((lower[:4], lower[4:], upper)):
        words[number] = packed(bytes_)
