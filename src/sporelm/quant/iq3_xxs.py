"""IQ3_XXS: groups of four values from a codebook of 256 entries, 3.06 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import apply_signs, expand_sign_codes, look_up
from sporelm.quant.packing import list_words, read_halves, read_words, scale_groups

SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


class IQ3_XXS(
    QuantFormat, ggml_id=18, values=256, nbytes=98, activation="int8/256", words=((0, 2), *list_words(66, 8, 4))
):
    """[float16 scale][64 bytes: indices][8 words of 32 bits: signs and scale of 32 values].

    value = scale * (s + 0.5) / 2 * codebook number. s is the upper four bits of the word; below it are four 7-bit sign
    codes for eight values each, lowest first (`grids.expand_sign_codes`).
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        words = read_words(blocks, 66, 8, 4)
        multiples = ((words >> 28).astype(np.float32) + np.float32(0.5)) * np.float32(0.5)
        signs = expand_sign_codes(words[:, :, None] >> SHIFTS & 127).reshape(-1, 32)
        return scale_groups(read_halves(blocks, 0), multiples, apply_signs(look_up("IQ3_XXS", blocks[:, 2:66]), signs))
