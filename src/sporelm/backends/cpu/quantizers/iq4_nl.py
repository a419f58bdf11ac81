"""IQ4_NL: codes of uneven levels with one scale."""

from sporelm.backends.cpu.quantizers.columns import Column, Work, put_nibbles
from sporelm.backends.cpu.quantizers.levels import code_curved, search_curved_scale, spread


def quantize(work: Work, x: Column, weights: Column | None) -> None:
    k = work.k
    if weights:
        spread(k, x, weights)
    scale = search_curved_scale(k, x, weights)
    inverse = k.select(scale.equals(0.0), k.const(k.vf, 0.0), k.const(k.vf, 1.0) / scale)
    codes = work.integers(32)
    with k.range(32) as at:
        codes[at] = code_curved(k, x[at] * inverse)
    work.halves(0)[0] = work.half(scale)
    put_nibbles(work.words(2, 4), codes)
