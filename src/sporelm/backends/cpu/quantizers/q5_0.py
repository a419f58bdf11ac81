"""Q5_0: five bits around zero."""

from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, store_fifth_bits, store_nibbles
from sporelm.backends.cpu.quantizers.symmetric_rounding import fit_symmetric, round_symmetric


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    integers = work.integers(32)
    scale = fit_symmetric(work, x, weights, 16, integers) if weights else round_symmetric(work, x, 16, integers)
    work.halves(0)[0] = work.half(scale)
    store_fifth_bits(work.words(2), integers)
    store_nibbles(work.words(6, 4), integers)
