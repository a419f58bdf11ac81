"""Q6_K: six bits in sixteen groups with signed 8-bit scales, as quant/superblocks.py rounds them."""

from sporelm.backends.cpu.quantizers.bit_packing import pack_nibbles, pack_pairs
from sporelm.backends.cpu.quantizers.lane_arithmetic import any_lane, where
from sporelm.backends.cpu.quantizers.lane_columns import (
    Column,
    QuantizerWorkspace,
    nearest_between,
    nearest_int,
    pack_bits,
)
from sporelm.backends.cpu.quantizers.symmetric_search import (
    TINY,
    WeightedGroup,
    largest_value,
    multiply_weights,
    search_symmetric_groups,
    weigh_by_square,
)

SIZE, GROUPS, HALF = 16, 16, 32


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k, words, factor = work.k, work.words(0, 52).column, work.halves(208)
    scales, inverses, is_zero = search_groups(work, x, weights)
    largest = largest_value(k, scales)
    some = k.fabs(largest) >= TINY
    none = k.const(k.vi, 0)
    inverse = k.const(k.vf, -128.0) / largest
    factor[0] = work.half(where(k, some, k.const(k.vf, 1.0) / inverse, 0.0))
    stored = work.from_half(factor[0])
    multiples, integers = work.integers(GROUPS), work.integers(x.count)
    with k.range(GROUPS) as group:
        number = k.min(nearest_int(k, inverse * scales[group]), 127)
        multiples[group] = k.select(some, (number << 24).arithmetic_shift(24), none)
        step = multiples[group].to_float() * stored
        values, out = x.slice(group * SIZE, SIZE), integers.slice(group * SIZE, SIZE)
        with k.range(SIZE) as at:
            out[at] = k.select(some, nearest_between(k, values[at] / step, -HALF, HALF - 1) + HALF, none)
        lost = step.equals(0.0) & some  # where a scale rounds to 0, the integers of the search stay
        with k.when(any_lane(k, lost)), k.range(SIZE) as at:
            before = nearest_between(k, values[at] * inverses[group], -HALF, HALF - 1) + HALF
            out[at] = k.select(lost, k.select(is_zero[group].differs(0), none, before), out[at])
    pack_nibbles(k, integers, words.slice(0, 32), 64)
    pack_pairs(k, integers, words.slice(32, 16), right=4)
    for word in range(4):
        words[48 + word] = pack_bits([multiples[4 * word + byte] & 0xFF for byte in range(4)])


def search_groups(work: QuantizerWorkspace, x: Column, weights: Column | None) -> tuple[Column, Column, Column]:
    """Return the scale of each group, the inverse scale of the search, and whether the group is zero, i32."""
    k = work.k
    scales, inverses, is_zero = work.floats(GROUPS), work.floats(GROUPS), work.integers(GROUPS)
    own, products = work.floats(SIZE), work.floats(SIZE)
    with k.range(GROUPS) as group:
        values = x.slice(group * SIZE, SIZE)
        if weights is None:
            weighted = WeightedGroup(values, own, products)
            weigh_by_square(k, weighted)
        else:
            weighted = WeightedGroup(values, weights.slice(group * SIZE, SIZE), products)
            multiply_weights(k, weighted)
        found = search_symmetric_groups(k, weighted, HALF)
        scales[group], inverses[group] = found.scale, found.inverse
        is_zero[group] = k.select(found.is_zero, k.const(k.vi, 1), k.const(k.vi, 0))
    return scales, inverses, is_zero
