"""IQ2_S: groups of eight values from a codebook of 1024 entries, 2.56 bits per value."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import apply_signs, look_up
from sporelm.quant.packing import read_halves, scale_groups, split_nibbles, spread_bits


class IQ2_S(QuantFormat, ggml_id=22, values=256, nbytes=82, activation="int8/256"):
    """[float16 scale][32 bytes: indices][32 bytes: signs][8 bytes: upper bits][8 bytes: scales of groups of 16].

    value = scale * (nibble + 0.5) / 4 * codebook number. An index has two upper bits, lowest pair first; a set sign bit
    means negative; low nibbles come first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        indices = blocks[:, 2:34] | spread_bits(blocks[:, 66:74], 2).astype(np.uint16) << 8
        multiples = (split_nibbles(blocks[:, 74:], 1).astype(np.float32) + np.float32(0.5)) * np.float32(0.25)
        return scale_groups(read_halves(blocks, 0), multiples, apply_signs(look_up("IQ2_S", indices), blocks[:, 34:66]))
