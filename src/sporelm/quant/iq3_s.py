"""IQ3_S: groups of four values from a code book of 512, 3.44 bits each."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.grids import look_up, with_signs
from sporelm.quant.packing import read_halves, split_nibbles, spread_bits, stepped


class IQ3_S(QuantFormat, ggml_id=21, values=256, nbytes=110, activation="int8/256"):
    """[float16 scale][64 bytes: indices][8 bytes: upper bits][32 bytes: signs][4 bytes: scales of groups of 32].

    value = scale * (2 * nibble + 1) * number of the code book. An index has one upper bit, lowest first; a set sign
    bit is a minus; low nibbles come first.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        indices = blocks[:, 2:66] | spread_bits(blocks[:, 66:74], 1).astype(np.uint16) << 8
        multiples = (2 * split_nibbles(blocks[:, 106:], 1) + 1).astype(np.float32)
        return stepped(read_halves(blocks, 0), multiples, with_signs(look_up("IQ3_S", indices), blocks[:, 74:106]))
