"""IQ2_XXS: groups of eight values from a code book of 256, 2.06 bits each."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import even_signs, look_up, with_signs
from sporelm.quant.packing import read_halves, read_words, run_of_words, stepped

SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


class IQ2_XXS(
    QuantFormat, ggml_id=16, values=256, nbytes=66, activation="int8/256", words=((0, 2), *run_of_words(2, 32))
):
    """[float16 scale][eight times, for 32 values: 4 bytes of indices, a 32-bit word of signs and scale].

    value = scale * (s + 0.5) / 4 * number of the code book. s is the upper four bits of the word, below them lie four
    sign codes of seven bits, lowest first (`grids.even_signs`). In big-endian files the words are 16-bit halves.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        groups = blocks[:, 2:].reshape(-1, 8, 8)
        words = read_words(groups.reshape(-1, 8), 4, 1, 4).reshape(-1, 8)
        multiples = ((words >> 28).astype(np.float32) + np.float32(0.5)) * np.float32(0.25)
        signs = even_signs(words[:, :, None] >> SHIFTS & 127).reshape(-1, 32)
        numbers = with_signs(look_up("IQ2_XXS", groups[:, :, :4].reshape(-1, 32)), signs)
        return stepped(read_halves(blocks, 0), multiples, numbers)
