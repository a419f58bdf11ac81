"""IQ2_XXS: groups of eight values from a codebook of 256 entries, 2.06 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import apply_signs, expand_sign_codes, look_up
from sporelm.quant.packing import list_words, read_halves, read_words, scale_groups

SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


class IQ2_XXS(
    QuantFormat, ggml_id=16, values=256, nbytes=66, activation="int8/256", words=((0, 2), *list_words(2, 32))
):
    """[float16 scale][eight times, for 32 values: 4 bytes of indices, a 32-bit word of signs and scale].

    value = scale * (s + 0.5) / 4 * codebook number. s is the upper four bits of the word; below it are four 7-bit sign
    codes, lowest first (`grids.expand_sign_codes`). In big-endian files the words are swapped as 16-bit halves.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        groups = blocks[:, 2:].reshape(-1, 8, 8)
        words = read_words(groups.reshape(-1, 8), 4, 1, 4).reshape(-1, 8)
        multiples = ((words >> 28).astype(np.float32) + np.float32(0.5)) * np.float32(0.25)
        signs = expand_sign_codes(words[:, :, None] >> SHIFTS & 127).reshape(-1, 32)
        numbers = apply_signs(look_up("IQ2_XXS", groups[:, :, :4].reshape(-1, 32)), signs)
        return scale_groups(read_halves(blocks, 0), multiples, numbers)
