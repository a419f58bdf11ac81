"""IQ4_NL: codes of non-uniform levels with one scale."""

from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, store_nibbles
from sporelm.backends.cpu.quantizers.uneven_levels import code_curved, search_curved_scale, weigh_by_magnitude


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k = work.k
    if weights:
        weigh_by_magnitude(k, x, weights)
    scale = search_curved_scale(k, x, weights)
    inverse = k.select(scale.equals(0.0), k.const(k.vf, 0.0), k.const(k.vf, 1.0) / scale)
    codes = work.integers(32)
    with k.range(32) as at:
        codes[at] = code_curved(k, x[at] * inverse)
    work.halves(0)[0] = work.half(scale)
    store_nibbles(work.words(2, 4), codes)
