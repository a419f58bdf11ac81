"""Integers of a block above its minimum with one scale: see `quant.block_rounding`."""

from sporelm.backends.cpu.jit import Val
from sporelm.backends.cpu.quantizers.affine_search import FINE_CANDIDATES, AffineOptions, LaneGroup, search_affine
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace, inverse_or_zero, nearest_between


def round_affine(
    work: QuantizerWorkspace, x: Column, weights: Column | None, levels: int, integers: Column
) -> tuple[Val, Val]:
    """Return the scale and the minimum of a block; set the integers, 0 to `levels`."""
    if weights:
        return _fit_weighted(work, x, weights, levels, integers)
    k = work.k
    least = most = x[0]
    for at in range(1, x.count):
        value = x[at]
        least, most = k.select(value < least, value, least), k.select(value > most, value, most)
    scale = (most - least + 0.0) / float(levels)
    inverse = inverse_or_zero(k, scale)
    lost = k.fabs(scale).equals(float("inf"))  # a span beyond f32
    for at in range(x.count):
        scaled = k.select(lost, k.const(k.vf, 0.0), (x[at] - least) * inverse + 0.5)
        integers[at] = k.min(scaled.to_int(), levels)
    return scale, least


def _fit_weighted(
    work: QuantizerWorkspace, x: Column, weights: Column, levels: int, integers: Column
) -> tuple[Val, Val]:
    """Return the best scale and minimum of a search for weighted values."""
    k = work.k
    (found,) = search_affine(k, [LaneGroup(x, weights, work.floats(x.count))], AffineOptions(levels, FINE_CANDIDATES))
    for at in range(x.count):
        integers[at] = nearest_between(k, (x[at] - found.base) * found.inverse, 0, levels)
    return found.scale, -found.drop
