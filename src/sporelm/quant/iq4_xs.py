"""IQ4_XS: 256 codes of non-uniform levels in eight groups, each with a 6-bit scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.nonuniform_levels import IQ4_LEVELS, round_to_iq4, search_iq4_scale, spread_weights
from sporelm.quant.packing import join_nibbles, read_halves, read_words, scale_groups, split_nibbles, to_halves
from sporelm.quant.scale_search import round_to_int
from sporelm.quant.superblocks import groups_to_columns, round_in_chunks

Floats = NDArray[np.float32]
PAIRS = np.arange(0, 16, 2, dtype=np.uint16)


class IQ4_XS(
    QuantFormat, ggml_id=23, values=256, nbytes=136, activation="int8/256", words=((0, 2), (2, 2)), can_weigh=True
):
    """[float16 scale][word of 16 bits: upper scale bits][4 bytes: lower scale bits][128 bytes: codes].

    value = `nonuniform_levels.IQ4_LEVELS[nibble]` * (scale * (group scale - 32)), in groups of 32. The lower four bits
    of a group scale are a nibble, low nibbles first; its upper two are a bit pair, lowest first. In each 16 of the 128
    bytes the low nibbles are one half of a group and the high nibbles the other.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        upper = (read_words(blocks, 2, 1, 2) >> PAIRS & 3).astype(np.uint8)
        scales = split_nibbles(blocks[:, 4:8], 1) | upper << np.uint8(4)
        multiples = (scales.view(np.int8) - np.int8(32)).astype(np.float32)
        return scale_groups(read_halves(blocks, 0), multiples, IQ4_LEVELS[split_nibbles(blocks[:, 8:], 16)])

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        factors, scales, codes = round_in_chunks(_round, values, weights)
        words = np.bitwise_or.reduce((scales >> np.uint8(4)).astype(np.uint16) << PAIRS, axis=1, keepdims=True)
        upper = words.astype("<u2").view(np.uint8)
        return np.concatenate([to_halves(factors), upper, join_nibbles(scales, 1), join_nibbles(codes, 16)], axis=1)


def _round(values: Floats, weights: Floats | None = None) -> tuple[Floats, NDArray[np.uint8], NDArray[np.uint8]]:
    """Round float32 [n, 256] to factors float32 [n, 1], scales + 32 uint8 [n, 8], codes uint8 [n, 256]."""
    if weights is not None:
        weights = groups_to_columns(
            weights * np.ascontiguousarray(spread_weights(np.ascontiguousarray(values.T)).T), 32
        )
    scales = search_iq4_scale(groups_to_columns(values, 32), weights).reshape(-1, 8)
    magnitudes = np.where(np.isnan(scales), np.float32(0), np.abs(scales))
    first = magnitudes.argmax(axis=1)[:, None]
    largest = np.where(magnitudes.any(axis=1, keepdims=True), np.take_along_axis(scales, first, axis=1), np.float32(0))
    factors: Floats = np.divide(-largest, np.float32(32))
    inverse = np.where(factors != 0, np.float32(1) / factors, np.float32(0))
    signed = np.clip(round_to_int(inverse * scales), -32, 31)
    steps = factors * signed.astype(np.float32)  # of the factor before it is rounded to float16
    inverses = np.where(steps != 0, np.float32(1) / steps, np.float32(0))
    codes = round_to_iq4(values.reshape(-1, 8, 32) * inverses[:, :, None]).reshape(-1, 256)
    return factors, (signed + 32).astype(np.uint8), codes
