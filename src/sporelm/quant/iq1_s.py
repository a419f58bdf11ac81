"""IQ1_S: groups of eight values from a codebook of 2048 entries, 1.56 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import look_up
from sporelm.quant.packing import list_words, read_halves, read_words, scale_groups

SHIFTS = np.arange(0, 12, 3, dtype=np.uint16)
DELTA = np.float32(0.125)


class IQ1_S(QuantFormat, ggml_id=19, values=256, nbytes=50, activation="int8/256", words=((0, 2), *list_words(34, 8))):
    """[float16 scale][32 bytes: indices][8 words of 16 bits, one per 32 values].

    value = scale * (2 * s + 1) * (codebook number + delta). A word holds three upper bits of each of its four indices,
    lowest first, then the 3-bit s, and a bit that selects delta = -1/8 instead of 1/8.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        words = read_words(blocks, 34, 8, 2)
        upper = (words[:, :, None] >> SHIFTS & 7).reshape(-1, 32)
        multiples = (2 * (words >> 12 & 7) + 1).astype(np.float32)
        shifts = np.where(words >> 15, -DELTA, DELTA)
        numbers = look_up("IQ1", blocks[:, 2:34] | upper << 8) + np.repeat(shifts, 32, axis=1)
        return scale_groups(read_halves(blocks, 0), multiples, numbers)
