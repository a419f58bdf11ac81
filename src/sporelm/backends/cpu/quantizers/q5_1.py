"""Q5_1: five bits above a minimum."""

from sporelm.backends.cpu.quantizers.affine_rounding import round_affine
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, store_fifth_bits, store_nibbles


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    integers = work.integers(32)
    scale, minimum = round_affine(work, x, weights, 31, integers)
    halves = work.halves(0, 2)
    halves[0], halves[1] = work.half(scale), work.half(minimum)
    store_fifth_bits(work.words(4), integers)
    store_nibbles(work.words(8, 4), integers)
