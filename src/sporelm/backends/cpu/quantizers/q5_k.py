"""Q5_K: five bits in eight groups."""

from sporelm.backends.cpu.quantizers.above_minimum import Tries, Ways
from sporelm.backends.cpu.quantizers.columns import Column, Work
from sporelm.backends.cpu.quantizers.grouped import round_in_groups
from sporelm.backends.cpu.quantizers.words import pack_nibbles, pack_planes


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    words = work.words(0, 44).column
    integers = round_in_groups(work, x, weights, Ways(31, Tries(-0.5, 0.1, 16)), words)
    pack_planes(work.k, integers, words.part(4, 8), 4)
    pack_nibbles(work.k, integers, words.part(12, 32), 32)
