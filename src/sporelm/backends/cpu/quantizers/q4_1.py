"""Q4_1: nibbles above a minimum."""

from sporelm.backends.cpu.quantizers.affine_rounding import round_affine
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, store_nibbles


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    integers = work.integers(32)
    scale, minimum = round_affine(work, x, weights, 15, integers)
    halves = work.halves(0, 2)
    halves[0], halves[1] = work.half(scale), work.half(minimum)
    store_nibbles(work.words(4, 4), integers)
