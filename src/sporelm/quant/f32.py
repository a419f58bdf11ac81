"""F32: IEEE single precision."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class F32(QuantFormat, ggml_id=0, values=1, nbytes=4, activation="float", words=((0, 4),)):
    """One little-endian float32."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        return np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)
