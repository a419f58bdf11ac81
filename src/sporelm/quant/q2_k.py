"""Q2_K: 256 numbers of two bits in sixteen groups, each with a 4-bit scale and a 4-bit minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_bit_pairs, read_halves, split_bit_pairs, to_halves
from sporelm.quant.search import FINE, Tries, nearest_int, search_above_minimum
from sporelm.quant.superblocks import columns, in_parts, rows, weigh
from sporelm.quant.turns import search_above_zero

Floats = NDArray[np.float32]
FIFTEEN = np.float32(15)


class Q2_K(
    QuantFormat, ggml_id=10, values=256, nbytes=84, activation="int8/256", words=((80, 2), (82, 2)), weighted=True
):
    """[16 bytes: scales as low, minimums as high nibbles][64 bytes: bit pairs][float16 scale][float16 minimum].

    value = pair * (scale * group scale) - minimum * group minimum, in groups of 16; `packing.split_bit_pairs` says how
    the 64 bytes are laid out.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        factors, groups = read_halves(blocks, 80, 2), blocks[:, :16]
        pairs = split_bit_pairs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
        with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders look for
            steps = factors[:, :1] * (groups & np.uint8(15)).astype(np.float32)
            drops = factors[:, 1:] * (groups >> np.uint8(4)).astype(np.float32)
            return (pairs * steps[:, :, None] - drops[:, :, None]).reshape(-1, 256)

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        groups, integers, factors = in_parts(_round, values, weights)
        return np.concatenate([groups, join_bit_pairs(integers), to_halves(factors)], axis=1)


def _round(values: Floats, importance: Floats | None = None) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
    """float32 [n, 256] -> scales and minimums as nibbles [n, 16], integers [n, 256], factors float32 [n, 2]."""
    x = columns(values, 16)
    if importance is None:
        found = search_above_minimum(x, np.abs(x), 3, Tries(-0.5, 0.1, 16), by_magnitude=True)
        parts = [_four_bits(part.reshape(-1, 16)) for part in (found.scale, found.drop)]
        factors: Floats = np.divide(np.concatenate([largest for largest, _ in parts], axis=1), FIFTEEN)
        scales, minimums = (integers for _, integers in parts)
    else:
        weights, sums = weigh(values, importance, 16, parts=1)
        found = search_above_minimum(x, weights, 3, FINE)
        fitted = [search_above_zero(columns(part.reshape(-1, 16), 16), sums, 15) for part in (found.scale, found.drop)]
        factors = np.stack([factor for factor, _ in fitted], axis=1)
        scales, minimums = (integers.T for _, integers in fitted)
    groups = scales | minimums << np.uint8(4)
    stored = factors.astype(np.float16).astype(np.float32)
    step = (stored[:, :1] * (groups & np.uint8(15)).astype(np.float32)).ravel()
    drop = (stored[:, 1:] * (groups >> np.uint8(4)).astype(np.float32)).ravel()
    integers = np.clip(nearest_int((x + drop) / step), 0, 3).astype(np.uint8)
    lost = step == 0  # a scale that rounds to 0: the search's integers stay
    if lost.any():
        integers[:, lost] = np.clip(nearest_int((x[:, lost] - found.base[lost]) * found.inverse[lost]), 0, 3)
    return groups, rows(integers), factors


def _four_bits(numbers: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """The largest of each block's numbers and all as 0 to 15 parts of it: float32 [n, 16] -> [n, 1], uint8 [n, 16]."""
    largest = np.where(numbers > 0, numbers, np.float32(0)).max(axis=1, keepdims=True)
    parts = nearest_int(FIFTEEN / largest * numbers).astype(np.uint8)  # negative ones wrap around, as in ggml
    return largest, np.where(largest > 0, parts, np.uint8(0))
