"""Q5_1: five bits above a minimum."""

from sporelm.backends.cpu.quantizers.columns import Column, Work, put_fifth_bits, put_nibbles
from sporelm.backends.cpu.quantizers.minimum import above_minimum


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    integers = work.integers(32)
    scale, minimum = above_minimum(work, x, weights, 31, integers)
    halves = work.halves(0, 2)
    halves[0], halves[1] = work.half(scale), work.half(minimum)
    put_fifth_bits(work.words(4), integers)
    put_nibbles(work.words(8, 4), integers)
