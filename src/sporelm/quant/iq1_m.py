"""IQ1_M: groups of eight values from a codebook of 2048 entries, 1.75 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import look_up
from sporelm.quant.packing import list_words, read_words, scale_groups, split_nibbles

SHIFTS = np.arange(0, 12, 3, dtype=np.uint16)
QUARTERS = np.arange(0, 16, 4, dtype=np.uint16)
DELTA = np.float32(0.125)


class IQ1_M(QuantFormat, ggml_id=29, values=256, nbytes=56, activation="int8/256", words=list_words(48, 4)):
    """[32 bytes: indices][16 bytes: upper bits][4 words of 16 bits: scales].

    value = scale * (2 * s + 1) * (codebook number + delta). Each nibble of the 16 bytes, low nibbles first, holds three
    upper bits of an index and a bit that selects delta = -1/8 instead of 1/8. Each word holds the 3-bit s of four
    groups of 16, lowest first; the upper four bits of all words form the float16 scale, lowest first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        words = read_words(blocks, 48, 4, 2)
        nibbles = split_nibbles(blocks[:, 32:48], 1)
        halves = np.bitwise_or.reduce(words >> 12 << QUARTERS, axis=1, keepdims=True).astype("<u2")
        groups = (words[:, :, None] >> SHIFTS & 7).reshape(-1, 16)
        factors = halves.view("<f2").astype(np.float32)
        multiples = (2 * groups + 1).astype(np.float32)
        shifts = np.where(nibbles & 8, -DELTA, DELTA)
        indices = blocks[:, :32] | (nibbles & 7).astype(np.uint16) << 8
        return scale_groups(factors, multiples, look_up("IQ1", indices) + np.repeat(shifts, 8, axis=1))
