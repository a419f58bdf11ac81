"""IQ3_XXS: groups of four values from a code book of 256, 3.06 bits each."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import even_signs, look_up, with_signs
from sporelm.quant.packing import read_halves, read_words, run_of_words, stepped

SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


class IQ3_XXS(
    QuantFormat, ggml_id=18, values=256, nbytes=98, activation="int8/256", words=((0, 2), *run_of_words(66, 8, 4))
):
    """[float16 scale][64 bytes: indices][8 words of 32 bits: signs and scale of 32 values].

    value = scale * (s + 0.5) / 2 * number of the code book. s is the upper four bits of the word, below them lie four
    sign codes of seven bits for eight values each, lowest first (`grids.even_signs`).
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        words = read_words(blocks, 66, 8, 4)
        multiples = ((words >> 28).astype(np.float32) + np.float32(0.5)) * np.float32(0.5)
        signs = even_signs(words[:, :, None] >> SHIFTS & 127).reshape(-1, 32)
        return stepped(read_halves(blocks, 0), multiples, with_signs(look_up("IQ3_XXS", blocks[:, 2:66]), signs))
