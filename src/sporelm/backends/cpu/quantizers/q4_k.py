"""Q4_K: nibbles in eight groups."""

from sporelm.backends.cpu.quantizers.affine_search import AffineOptions, ScaleCandidates
from sporelm.backends.cpu.quantizers.bit_packing import pack_nibbles
from sporelm.backends.cpu.quantizers.k_quant_groups import round_in_groups
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    words = work.words(0, 36).column
    integers = round_in_groups(work, x, weights, AffineOptions(15, ScaleCandidates(-1.0, 0.1, 21)), words)
    pack_nibbles(work.k, integers, words.slice(4, 32), 32)
