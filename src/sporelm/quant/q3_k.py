"""Q3_K: 256 numbers of three bits in sixteen groups, each with a 6-bit scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.coordinate_search import descend_signed
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import (
    join_bit_pairs,
    join_bit_planes,
    read_halves,
    scale_groups,
    split_bit_pairs,
    split_bit_planes,
    to_halves,
)
from sporelm.quant.scale_search import find_largest_magnitude, quantize_signed, round_to_int, search_signed
from sporelm.quant.superblocks import columns_to_blocks, groups_to_columns, round_in_chunks, weigh_groups

Floats = NDArray[np.float32]
PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


class Q3_K(QuantFormat, ggml_id=11, values=256, nbytes=110, activation="int8/256", words=((108, 2),), can_weigh=True):
    """[32 bytes: upper bits][64 bytes: lower bit pairs][12 bytes: scales of groups of 16][float16 scale].

    value = (upper bit * 4 + pair - 4) * (scale * (group scale - 32)). `packing.split_bit_planes` and `split_bit_pairs`
    define the layout of the bits. The first eight of the 12 bytes hold the lower four bits of scales 0 to 7 and, as
    high nibbles, of scales 8 to 15. Byte 8 + k holds the upper two bits of scales k, k + 4, k + 8 and k + 12, lowest
    first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        upper = split_bit_planes(blocks[:, :32]) << np.uint8(2)
        integers = (upper | split_bit_pairs(blocks[:, 32:96])).view(np.int8) - np.int8(4)
        multiples = (_split_scales(blocks[:, 96:108]).view(np.int8) - np.int8(32)).astype(np.float32)
        return scale_groups(read_halves(blocks, 108), multiples, integers)

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        factors, scales, integers = round_in_chunks(_round, values, weights)
        pairs = join_bit_pairs(integers & np.uint8(3))
        parts = [join_bit_planes(integers >> np.uint8(2)), pairs, _join_scales(scales), to_halves(factors)]
        return np.concatenate(parts, axis=1)


def _split_scales(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack the sixteen 6-bit scales, uint8 [n, 12] -> [n, 16]; the class describes their layout."""
    lower = np.concatenate([packed[:, :8] & np.uint8(15), packed[:, :8] >> np.uint8(4)], axis=1)
    upper = (packed[:, None, 8:] >> PAIRS & np.uint8(3)).reshape(-1, 16)
    return lower | upper << np.uint8(4)


def _join_scales(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `_split_scales`: uint8 [n, 16], each below 64, -> [n, 12]."""
    lower = scales[:, :8] & np.uint8(15) | scales[:, 8:] << np.uint8(4)
    upper = np.bitwise_or.reduce((scales >> np.uint8(4)).reshape(-1, 4, 4) << PAIRS, axis=1)
    return np.concatenate([lower, upper], axis=1)


def _round(values: Floats, importance: Floats | None = None) -> tuple[Floats, NDArray[np.uint8], NDArray[np.uint8]]:
    """Round float32 [n, 256] to factors float32 [n, 1], scales + 32 uint8 [n, 16], integers + 4 uint8 [n, 256]."""
    x = groups_to_columns(values, 16)
    if importance is None:
        group_scales, searched = descend_signed(x, 4)
        factors, signed = _scales_by_largest(group_scales.reshape(-1, 16))
    else:
        weights, sums = weigh_groups(values, importance, 16)
        fit = search_signed(x, 4, weights)
        searched = quantize_signed(x, fit, 4)
        factors, signed = _fit_scales(groups_to_columns(fit.scale.reshape(-1, 16), 16), sums)
    step = (factors.astype(np.float16).astype(np.float32) * signed.astype(np.float32)).ravel()
    integers = (np.clip(round_to_int(x / step), -4, 3) + 4).astype(np.uint8)
    is_lost = step == 0  # the scale rounds to 0: the integers of the search are kept
    integers[:, is_lost] = searched[:, is_lost]
    return factors, (signed + np.int8(32)).view(np.uint8), columns_to_blocks(integers)


def _scales_by_largest(numbers: Floats) -> tuple[Floats, NDArray[np.int8]]:
    """Round with the factor that maps the largest magnitude to -32: float32 [n, 16] -> [n, 1], int8 [n, 16]."""
    largest = find_largest_magnitude(np.ascontiguousarray(numbers.T))[:, None]
    is_zero = largest == 0
    inverse = np.float32(-32) / largest
    factors = np.where(is_zero, np.float32(0), np.float32(1) / inverse)
    signed = np.clip(round_to_int(inverse * numbers).astype(np.int8), -32, 31)
    return factors, np.where(is_zero, np.int8(-32), signed)


def _fit_scales(numbers: Floats, weights: Floats) -> tuple[Floats, NDArray[np.int8]]:
    """Round with the factor that fits the weighted numbers best: float32 [16, n] -> [n, 1], int8 [n, 16]."""
    fit = search_signed(numbers, 32, weights)
    return fit.scale[:, None], (quantize_signed(numbers, fit, 32).view(np.int8) - np.int8(32)).T
