"""I8: signed integers of 8 bits, stored unchanged."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class I8(QuantFormat, ggml_id=24, values=1, nbytes=1, activation="float", words=()):
    """One signed integer of 8 bits; exact as a float32 value. For tables, not for weights."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<i1").astype(np.float32)
