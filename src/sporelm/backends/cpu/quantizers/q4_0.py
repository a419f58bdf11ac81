"""Q4_0: nibbles around zero."""

from sporelm.backends.cpu.quantizers.around_zero import fit_around_zero, round_around_zero
from sporelm.backends.cpu.quantizers.columns import Column, Work, put_nibbles


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    integers = work.integers(32)
    scale = fit_around_zero(work, x, weights, 8, integers) if weights else round_around_zero(work, x, 8, integers)
    work.halves(0)[0] = work.half(scale)
    put_nibbles(work.words(2, 4), integers)
