"""IQ4_XS: 256 codes of uneven levels in eight groups, each with a 6-bit scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.levels import CURVED, nearest_curved, search_curved_scale, spread_of
from sporelm.quant.packing import join_nibbles, read_halves, read_words, split_nibbles, stepped, to_halves
from sporelm.quant.search import nearest_int
from sporelm.quant.superblocks import columns, in_parts

Floats = NDArray[np.float32]
PAIRS = np.arange(0, 16, 2, dtype=np.uint16)


class IQ4_XS(
    QuantFormat, ggml_id=23, values=256, nbytes=136, activation="int8/256", words=((0, 2), (2, 2)), weighted=True
):
    """[float16 scale][word of 16 bits: upper scale bits][4 bytes: lower scale bits][128 bytes: codes].

    value = level of the nibble (`levels.CURVED`) * (scale * (group scale - 32)), in groups of 32. Scales' lower four
    bits are nibbles, low ones first, their upper two are pairs of bits, lowest first. Of each 16 of the 128 bytes the
    low nibbles are half a group, the high nibbles the other half.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        upper = (read_words(blocks, 2, 1, 2) >> PAIRS & 3).astype(np.uint8)
        scales = split_nibbles(blocks[:, 4:8], 1) | upper << np.uint8(4)
        multiples = (scales.view(np.int8) - np.int8(32)).astype(np.float32)
        return stepped(read_halves(blocks, 0), multiples, CURVED[split_nibbles(blocks[:, 8:], 16)])

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        factors, scales, codes = in_parts(_round, values, weights)
        words = np.bitwise_or.reduce((scales >> np.uint8(4)).astype(np.uint16) << PAIRS, axis=1, keepdims=True)
        upper = words.astype("<u2").view(np.uint8)
        return np.concatenate([to_halves(factors), upper, join_nibbles(scales, 1), join_nibbles(codes, 16)], axis=1)


def _round(values: Floats, weights: Floats | None = None) -> tuple[Floats, NDArray[np.uint8], NDArray[np.uint8]]:
    """float32 [n, 256] -> factors float32 [n, 1], scales + 32 uint8 [n, 8], codes uint8 [n, 256]."""
    if weights is not None:
        weights = columns(weights * np.ascontiguousarray(spread_of(np.ascontiguousarray(values.T)).T), 32)
    found = search_curved_scale(columns(values, 32), weights).reshape(-1, 8)
    magnitudes = np.where(np.isnan(found), np.float32(0), np.abs(found))
    first = magnitudes.argmax(axis=1)[:, None]
    largest = np.where(magnitudes.any(axis=1, keepdims=True), np.take_along_axis(found, first, axis=1), np.float32(0))
    factors: Floats = np.divide(-largest, np.float32(32))
    inverse = np.where(factors != 0, np.float32(1) / factors, np.float32(0))
    signed = np.clip(nearest_int(inverse * found), -32, 31)
    steps = factors * signed.astype(np.float32)  # of the factor as it was before it became float16
    inverses = np.where(steps != 0, np.float32(1) / steps, np.float32(0))
    codes = nearest_curved(values.reshape(-1, 8, 32) * inverses[:, :, None]).reshape(-1, 256)
    return factors, (signed + 32).astype(np.uint8), codes
