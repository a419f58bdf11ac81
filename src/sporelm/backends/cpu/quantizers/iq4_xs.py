"""IQ4_XS: codes of non-uniform levels, a 6-bit scale for each 32 of them."""

from sporelm.backends.cpu.quantizers.lane_columns import (
    Column,
    QuantizerWorkspace,
    nearest_between,
    pack_bits,
    store_nibbles,
)
from sporelm.backends.cpu.quantizers.symmetric_rounding import largest_magnitude
from sporelm.backends.cpu.quantizers.uneven_levels import code_curved, search_curved_scale, weigh_by_magnitude


def quantize(work: QuantizerWorkspace, x: Column, weights: Column | None) -> None:
    k = work.k
    zero, one = k.const(k.vf, 0.0), k.const(k.vf, 1.0)
    if weights:
        weigh_by_magnitude(k, x, weights)
    found, multiples, codes = work.floats(8), work.integers(8), work.integers(32)
    with k.range(8) as group:
        part = x.slice(group * 32, 32)
        found[group] = search_curved_scale(k, part, weights.slice(group * 32, 32) if weights else None)
    factor = -largest_magnitude(k, found)[0] / 32.0
    inverse = k.select(factor.equals(0.0), zero, one / factor)
    words = work.words(8, 32)
    with k.range(8) as group:
        multiple = nearest_between(k, inverse * found[group], -32, 31)
        step = factor * multiple.to_float()  # of the factor before it was rounded to float16
        back = k.select(step.equals(0.0), zero, one / step)
        multiples[group] = multiple + 32
        with k.range(32) as at:
            codes[at] = code_curved(k, x[group * 32 + at] * back)
        store_nibbles(words, codes, group * 4)
    scales = [multiples[group] for group in range(8)]
    work.halves(0)[0] = work.half(factor)
    work.halves(2)[0] = pack_bits([scale >> 4 for scale in scales], 2)
    work.words(4)[0] = pack_bits([scale & 15 for scale in scales], 4)
