"""I16: signed integers of 16 bits, stored unchanged."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class I16(QuantFormat, ggml_id=25, values=1, nbytes=2, activation="float", words=((0, 2),)):
    """One little-endian signed integer of 16 bits; exact as a float32 value. For tables, not for weights."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<i2").astype(np.float32)
