"""Q2_K: two bits in sixteen groups with 4-bit scales and minimums, as quant/q2_k.py rounds them."""

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.above_minimum import FINE, Tries, Ways
from sporelm.backends.cpu.quantizers.columns import Column, Work, nearest_int, packed
from sporelm.backends.cpu.quantizers.grouped import Parts, round_again, search_groups
from sporelm.backends.cpu.quantizers.rounding import to_integers
from sporelm.backends.cpu.quantizers.turns import search_above_zero
from sporelm.backends.cpu.quantizers.words import pack_pairs, weigh

GROUPS, FOUR_BITS = 16, 15


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    k, words = work.k, work.words(0, 21).column
    ways = Ways(3, Tries(-0.5, 0.1, 16), by_magnitude=True)
    if weights is not None:
        weigh(k, x, weights, 1.0)
        ways = Ways(3, FINE)
    found = search_groups(work, x, weights, ways, GROUPS)
    scales, minimums = work.integers(GROUPS), work.integers(GROUPS)
    pairs = ((found.scale, scales), (found.drop, minimums))
    if weights is None:
        factors = [_parts_of_largest(k, *pair) for pair in pairs]
    else:
        factors = [_fitted_parts(work, *pair, found.weight) for pair in pairs]
    halves = [work.half(factor) for factor in factors]
    _pack_scales(scales, minimums, words)
    words[20] = halves[0] | (halves[1] << 16)
    integers = work.integers(x.count)
    stored = [work.from_half(half) for half in halves]
    round_again(k, x, found, Parts(scales, stored[0]), Parts(minimums, stored[1]), ways.levels, integers)
    pack_pairs(k, integers, words.part(4, 16))


def _parts_of_largest(k: Builder, numbers: Column, out: Column) -> Val:
    """Numbers as 0 to 15 parts of the largest; the factor of a part."""
    largest = k.zero(k.vf)
    with k.range(GROUPS) as group:
        largest.set(k.max(numbers[group], largest.value))
    inverse = k.const(k.vf, FOUR_BITS) / largest.value
    some = largest.value > 0.0
    with k.range(GROUPS) as group:
        out[group] = k.select(some, nearest_int(k, inverse * numbers[group]) & 0xFF, k.const(k.vi, 0))
    return largest.value / float(FOUR_BITS)


def _fitted_parts(work: Work, numbers: Column, out: Column, weights: Column) -> Val:
    """Numbers as 0 to 15 parts of what fits them best; the factor of a part."""
    k, fitted = work.k, work.floats(GROUPS)
    factor = search_above_zero(k, numbers, weights, fitted, FOUR_BITS)
    with k.range(GROUPS) as group:
        out[group] = to_integers(k, fitted[group])
    return factor


def _pack_scales(scales: Column, minimums: Column, words: Column) -> None:
    """Four words of nibbles; what was packed is what the scales and minimums then are."""
    for number in range(4):
        groups = range(4 * number, 4 * number + 4)
        bytes_ = [(scales[g] | minimums[g] << 4) & 0xFF for g in groups]
        words[number] = packed(bytes_)
        for g, byte in zip(groups, bytes_, strict=True):
            scales[g], minimums[g] = byte & 15, byte >> 4
