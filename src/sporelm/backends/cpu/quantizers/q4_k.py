"""Q4_K: nibbles in eight groups."""

from sporelm.backends.cpu.quantizers.above_minimum import Tries, Ways
from sporelm.backends.cpu.quantizers.columns import Column, Work
from sporelm.backends.cpu.quantizers.grouped import round_in_groups
from sporelm.backends.cpu.quantizers.words import pack_nibbles


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    words = work.words(0, 36).column
    integers = round_in_groups(work, x, weights, Ways(15, Tries(-1.0, 0.1, 21)), words)
    pack_nibbles(work.k, integers, words.part(4, 32), 32)
