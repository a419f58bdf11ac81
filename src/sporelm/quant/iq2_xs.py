"""IQ2_XS: groups of eight values from a codebook of 512 entries, 2.31 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import apply_signs, expand_sign_codes, look_up
from sporelm.quant.packing import list_words, read_halves, read_words, scale_groups, split_nibbles


class IQ2_XS(QuantFormat, ggml_id=17, values=256, nbytes=74, activation="int8/256", words=((0, 2), *list_words(2, 32))):
    """[float16 scale][32 words of 16 bits: index, above it a sign code of seven bits][8 bytes: scales of groups of 16].

    value = scale * (nibble + 0.5) / 4 * codebook number. Low nibbles come first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        words = read_words(blocks, 2, 32, 2)
        multiples = (split_nibbles(blocks[:, 66:], 1).astype(np.float32) + np.float32(0.5)) * np.float32(0.25)
        numbers = apply_signs(look_up("IQ2_XS", words & 511), expand_sign_codes(words >> 9))
        return scale_groups(read_halves(blocks, 0), multiples, numbers)
