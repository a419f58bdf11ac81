"""TQ2_0: four values to a byte."""

from sporelm.backends.cpu.quantizers.bit_packing import pack_pairs
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace
from sporelm.backends.cpu.quantizers.ternary import round_ternary


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    integers = work.integers(256)
    work.halves(64)[0] = work.half(round_ternary(work, x, integers))
    pack_pairs(work.k, integers, work.words(0, 16).column)
