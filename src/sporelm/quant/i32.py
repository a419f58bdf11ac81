"""I32: signed integers of 32 bits, stored unchanged."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class I32(QuantFormat, ggml_id=26, values=1, nbytes=4, activation="float", words=((0, 4),)):
    """One little-endian signed integer of 32 bits; rounded to float32 as a value. For tables, not for weights."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<i4").astype(np.float32)
