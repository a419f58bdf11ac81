"""Q3_K: 256 numbers of three bits in sixteen groups, each with a 6-bit scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import (
    join_bit_pairs,
    join_bit_planes,
    read_halves,
    split_bit_pairs,
    split_bit_planes,
    stepped,
    to_halves,
)
from sporelm.quant.search import largest_magnitude, nearest_int, search_around_zero, searched_integers
from sporelm.quant.superblocks import columns, in_parts, rows, weigh
from sporelm.quant.turns import search_in_turns

Floats = NDArray[np.float32]
PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


class Q3_K(QuantFormat, ggml_id=11, values=256, nbytes=110, activation="int8/256", words=((108, 2),), weighted=True):
    """[32 bytes: upper bits][64 bytes: lower bit pairs][12 bytes: scales of groups of 16][float16 scale].

    value = (upper bit * 4 + pair - 4) * (scale * (group scale - 32)). `packing.split_bit_planes` and `split_bit_pairs`
    say how the bits are laid out. Of the 12 bytes the first eight hold the lower four bits of scales 0 to 7 and, as
    high nibbles, of 8 to 15; byte 8 + k holds the upper two bits of scales k, k + 4, k + 8, k + 12, lowest first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        upper = split_bit_planes(blocks[:, :32]) << np.uint8(2)
        integers = (upper | split_bit_pairs(blocks[:, 32:96])).view(np.int8) - np.int8(4)
        multiples = (_split_scales(blocks[:, 96:108]).view(np.int8) - np.int8(32)).astype(np.float32)
        return stepped(read_halves(blocks, 108), multiples, integers)

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        factors, scales, integers = in_parts(_round, values, weights)
        pairs = join_bit_pairs(integers & np.uint8(3))
        parts = [join_bit_planes(integers >> np.uint8(2)), pairs, _join_scales(scales), to_halves(factors)]
        return np.concatenate(parts, axis=1)


def _split_scales(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The sixteen 6-bit scales in uint8 [n, 12], as the format says: [n, 16]."""
    lower = np.concatenate([packed[:, :8] & np.uint8(15), packed[:, :8] >> np.uint8(4)], axis=1)
    upper = (packed[:, None, 8:] >> PAIRS & np.uint8(3)).reshape(-1, 16)
    return lower | upper << np.uint8(4)


def _join_scales(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The opposite of `_split_scales`: uint8 [n, 16], each below 64, -> [n, 12]."""
    lower = scales[:, :8] & np.uint8(15) | scales[:, 8:] << np.uint8(4)
    upper = np.bitwise_or.reduce((scales >> np.uint8(4)).reshape(-1, 4, 4) << PAIRS, axis=1)
    return np.concatenate([lower, upper], axis=1)


def _round(values: Floats, importance: Floats | None = None) -> tuple[Floats, NDArray[np.uint8], NDArray[np.uint8]]:
    """float32 [n, 256] -> factors float32 [n, 1], scales + 32 uint8 [n, 16], integers + 4 uint8 [n, 256]."""
    x = columns(values, 16)
    if importance is None:
        found, searched = search_in_turns(x, 4)
        factors, signed = _scales_by_largest(found.reshape(-1, 16))
    else:
        weights, sums = weigh(values, importance, 16)
        group = search_around_zero(x, 4, weights)
        searched = searched_integers(x, group, 4)
        factors, signed = _fitted_scales(columns(group.scale.reshape(-1, 16), 16), sums)
    step = (factors.astype(np.float16).astype(np.float32) * signed.astype(np.float32)).ravel()
    integers = (np.clip(nearest_int(x / step), -4, 3) + 4).astype(np.uint8)
    lost = step == 0  # a scale that rounds to 0: the search's integers stay
    integers[:, lost] = searched[:, lost]
    return factors, (signed + np.int8(32)).view(np.uint8), rows(integers)


def _scales_by_largest(numbers: Floats) -> tuple[Floats, NDArray[np.int8]]:
    """The factor with which the number of largest magnitude becomes -32: float32 [n, 16] -> [n, 1], int8 [n, 16]."""
    largest = largest_magnitude(np.ascontiguousarray(numbers.T))[:, None]
    is_zero = largest == 0
    inverse = np.float32(-32) / largest
    factors = np.where(is_zero, np.float32(0), np.float32(1) / inverse)
    signed = np.clip(nearest_int(inverse * numbers).astype(np.int8), -32, 31)
    return factors, np.where(is_zero, np.int8(-32), signed)


def _fitted_scales(numbers: Floats, weights: Floats) -> tuple[Floats, NDArray[np.int8]]:
    """The factor that fits numbers of these weights best: float32 [16, n] -> [n, 1], int8 [n, 16]."""
    found = search_around_zero(numbers, 32, weights)
    return found.scale[:, None], (searched_integers(numbers, found, 32).view(np.int8) - np.int8(32)).T
