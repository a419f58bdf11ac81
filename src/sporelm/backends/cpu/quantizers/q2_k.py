"""Q2_K: two bits in sixteen groups with 4-bit scales and minimums, as quant/q2_k.py rounds them."""

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.affine_search import FINE_CANDIDATES, AffineOptions, ScaleCandidates
from sporelm.backends.cpu.quantizers.bit_packing import pack_pairs, weigh
from sporelm.backends.cpu.quantizers.coordinate_search import search_unsigned_coordinates
from sporelm.backends.cpu.quantizers.k_quant_groups import ScaledNumbers, round_with_stored_scales, search_groups
from sporelm.backends.cpu.quantizers.lane_arithmetic import to_integers
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, nearest_int, pack_bits

GROUPS, FOUR_BITS = 16, 15


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k, words = work.k, work.words(0, 21).column
    ways = AffineOptions(3, ScaleCandidates(-0.5, 0.1, 16), by_magnitude=True)
    if weights is not None:
        weigh(k, x, weights, 1.0)
        ways = AffineOptions(3, FINE_CANDIDATES)
    found = search_groups(work, x, weights, ways, GROUPS)
    scales, minimums = work.integers(GROUPS), work.integers(GROUPS)
    pairs = ((found.scale, scales), (found.drop, minimums))
    if weights is None:
        factors = [_quantize_to_largest(k, *pair) for pair in pairs]
    else:
        factors = [_quantize_fitted(work, *pair, found.weight) for pair in pairs]
    halves = [work.half(factor) for factor in factors]
    _pack_scales(scales, minimums, words)
    words[20] = halves[0] | (halves[1] << 16)
    integers = work.integers(x.count)
    stored = [work.from_half(half) for half in halves]
    round_with_stored_scales(
        k, x, found, ScaledNumbers(scales, stored[0]), ScaledNumbers(minimums, stored[1]), ways.levels, integers
    )
    pack_pairs(k, integers, words.slice(4, 16))


def _quantize_to_largest(k: Builder, numbers: Column, out: Column) -> Val:
    """Return numbers as 0 to 15 parts of the largest, and the factor of a part."""
    largest = k.zero(k.vf)
    with k.range(GROUPS) as group:
        largest.set(k.max(numbers[group], largest.value))
    inverse = k.const(k.vf, FOUR_BITS) / largest.value
    some = largest.value > 0.0
    with k.range(GROUPS) as group:
        out[group] = k.select(some, nearest_int(k, inverse * numbers[group]) & 0xFF, k.const(k.vi, 0))
    return largest.value / float(FOUR_BITS)


def _quantize_fitted(work: QuantizerWorkspace, numbers: Column, out: Column, weights: Column) -> Val:
    """Return numbers as 0 to 15 parts by the best fit, and the factor of a part."""
    k, fitted = work.k, work.floats(GROUPS)
    factor = search_unsigned_coordinates(k, numbers, weights, fitted, FOUR_BITS)
    with k.range(GROUPS) as group:
        out[group] = to_integers(k, fitted[group])
    return factor


def _pack_scales(scales: Column, minimums: Column, words: Column) -> None:
    """Write four words of nibbles; the scales and minimums become the packed values."""
    for number in range(4):
        groups = range(4 * number, 4 * number + 4)
        bytes_ = [(scales[g] | minimums[g] << 4) & 0xFF for g in groups]
        words[number] = pack_bits(bytes_)
        for g, byte in zip(groups, bytes_, strict=True):
            scales[g], minimums[g] = byte & 15, byte >> 4
