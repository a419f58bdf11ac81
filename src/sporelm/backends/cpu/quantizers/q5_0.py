"""Q5_0: five bits around zero."""

from sporelm.backends.cpu.quantizers.around_zero import fit_around_zero, round_around_zero
from sporelm.backends.cpu.quantizers.columns import Column, Work, put_fifth_bits, put_nibbles


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    integers = work.integers(32)
    scale = fit_around_zero(work, x, weights, 16, integers) if weights else round_around_zero(work, x, 16, integers)
    work.halves(0)[0] = work.half(scale)
    put_fifth_bits(work.words(2), integers)
    put_nibbles(work.words(6, 4), integers)
