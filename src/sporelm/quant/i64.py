"""I64: signed integers of 64 bits, stored unchanged."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class I64(QuantFormat, ggml_id=27, values=1, nbytes=8, activation="float", words=((0, 8),)):
    """One little-endian signed integer of 64 bits; rounded to float32 as a value. For tables, not for weights."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<i8").astype(np.float32)
