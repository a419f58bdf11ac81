"""IQ3_S: groups of four values from a codebook of 512 entries, 3.44 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import apply_signs, look_up
from sporelm.quant.packing import read_halves, scale_groups, split_nibbles, spread_bits


class IQ3_S(QuantFormat, ggml_id=21, values=256, nbytes=110, activation="int8/256"):
    """[float16 scale][64 bytes: indices][8 bytes: upper bits][32 bytes: signs][4 bytes: scales of groups of 32].

    value = scale * (2 * nibble + 1) * codebook number. An index has one upper bit, lowest first; a set sign bit means
    negative; low nibbles come first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        indices = blocks[:, 2:66] | spread_bits(blocks[:, 66:74], 1).astype(np.uint16) << 8
        multiples = (2 * split_nibbles(blocks[:, 106:], 1) + 1).astype(np.float32)
        return scale_groups(
            read_halves(blocks, 0), multiples, apply_signs(look_up("IQ3_S", indices), blocks[:, 74:106])
        )
