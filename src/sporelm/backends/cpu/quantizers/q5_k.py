"""Q5_K: five bits in eight groups."""

from sporelm.backends.cpu.quantizers.affine_search import AffineOptions, ScaleCandidates
from sporelm.backends.cpu.quantizers.bit_packing import pack_nibbles, pack_planes
from sporelm.backends.cpu.quantizers.k_quant_groups import round_in_groups
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    words = work.words(0, 44).column
    integers = round_in_groups(work, x, weights, AffineOptions(31, ScaleCandidates(-0.5, 0.1, 16)), words)
    pack_planes(work.k, integers, words.slice(4, 8), 4)
    pack_nibbles(work.k, integers, words.slice(12, 32), 32)
