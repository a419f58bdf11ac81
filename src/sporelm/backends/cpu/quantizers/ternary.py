"""Integers -1, 0 and 1 of a block times its largest magnitude: see `quant.ternary_rounding`."""

from sporelm.backends.cpu.jit import Val
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, inverse_or_zero


def round_ternary(work: QuantizerWorkspace, x: Column, integers: Column) -> Val:
    """Return the largest magnitude; set the integers + 1."""
    k = work.k
    found = k.zero(k.vf)
    with k.range(x.count) as at:
        found.set(k.fmax(k.fabs(x[at]), found.value))
    largest = found.value
    inverse = inverse_or_zero(k, largest)
    zero, one, two = (k.const(k.vi, number) for number in range(3))
    with k.range(x.count) as at:
        scaled = x[at] * inverse
        integers[at] = k.select(scaled >= 0.5, two, k.select(scaled <= -0.5, zero, one))
    return largest
