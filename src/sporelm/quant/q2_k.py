"""Q2_K: 256 numbers of two bits in sixteen groups, each with a 4-bit scale and a 4-bit minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.coordinate_search import search_unsigned
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_bit_pairs, read_halves, split_bit_pairs, to_halves
from sporelm.quant.scale_search import FINE_CANDIDATES, ScaleCandidates, round_to_int, search_affine
from sporelm.quant.superblocks import columns_to_blocks, groups_to_columns, round_in_chunks, weigh_groups

Floats = NDArray[np.float32]
FIFTEEN = np.float32(15)


class Q2_K(
    QuantFormat, ggml_id=10, values=256, nbytes=84, activation="int8/256", words=((80, 2), (82, 2)), can_weigh=True
):
    """[16 bytes: scales as low, minimums as high nibbles][64 bytes: bit pairs][float16 scale][float16 minimum].

    value = pair * (scale * group scale) - minimum * group minimum, in groups of 16. `packing.split_bit_pairs` defines
    the layout of the 64 bytes.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        factors = read_halves(blocks, 80, 2)
        groups = blocks[:, :16]
        pairs = split_bit_pairs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
        with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders check for
            steps = factors[:, :1] * (groups & np.uint8(15)).astype(np.float32)
            drops = factors[:, 1:] * (groups >> np.uint8(4)).astype(np.float32)
            return (pairs * steps[:, :, None] - drops[:, :, None]).reshape(-1, 256)

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        groups, integers, factors = round_in_chunks(_round, values, weights)
        return np.concatenate([groups, join_bit_pairs(integers), to_halves(factors)], axis=1)


def _round(values: Floats, importance: Floats | None = None) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
    """Round float32 [n, 256] to scales and minimums as nibbles [n, 16], integers [n, 256], factors float32 [n, 2]."""
    x = groups_to_columns(values, 16)
    if importance is None:
        fit = search_affine(x, np.abs(x), 3, ScaleCandidates(-0.5, 0.1, 16), by_magnitude=True)
        parts = [_to_four_bits(part.reshape(-1, 16)) for part in (fit.scale, fit.drop)]
        factors: Floats = np.divide(np.concatenate([largest for largest, _ in parts], axis=1), FIFTEEN)
        scales, minimums = (integers for _, integers in parts)
    else:
        weights, sums = weigh_groups(values, importance, 16, parts=1)
        fit = search_affine(x, weights, 3, FINE_CANDIDATES)
        fitted = [
            search_unsigned(groups_to_columns(part.reshape(-1, 16), 16), sums, 15) for part in (fit.scale, fit.drop)
        ]
        factors = np.stack([factor for factor, _ in fitted], axis=1)
        scales, minimums = (integers.T for _, integers in fitted)
    groups = scales | minimums << np.uint8(4)
    stored = factors.astype(np.float16).astype(np.float32)
    step = (stored[:, :1] * (groups & np.uint8(15)).astype(np.float32)).ravel()
    drop = (stored[:, 1:] * (groups >> np.uint8(4)).astype(np.float32)).ravel()
    integers = np.clip(round_to_int((x + drop) / step), 0, 3).astype(np.uint8)
    is_lost = step == 0  # the scale rounds to 0: the integers of the search are kept
    if is_lost.any():
        integers[:, is_lost] = np.clip(round_to_int((x[:, is_lost] - fit.base[is_lost]) * fit.inverse[is_lost]), 0, 3)
    return groups, columns_to_blocks(integers), factors


def _to_four_bits(numbers: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """Return each block's largest number, and all as 4-bit parts of it: float32 [n, 16] -> [n, 1], uint8 [n, 16]."""
    largest = np.where(numbers > 0, numbers, np.float32(0)).max(axis=1, keepdims=True)
    parts = round_to_int(FIFTEEN / largest * numbers).astype(np.uint8)  # negative ones wrap around, as in ggml
    return largest, np.where(largest > 0, parts, np.uint8(0))
