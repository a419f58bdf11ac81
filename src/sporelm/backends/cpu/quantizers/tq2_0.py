"""TQ2_0: four values to a byte."""

from sporelm.backends.cpu.quantizers.columns import Column, Work
from sporelm.backends.cpu.quantizers.ternary import round_to_thirds
from sporelm.backends.cpu.quantizers.words import pack_pairs


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    integers = work.integers(256)
    work.halves(64)[0] = work.half(round_to_thirds(work, x, integers))
    pack_pairs(work.k, integers, work.words(0, 16).column)
