"""F64: IEEE double precision."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class F64(QuantFormat, ggml_id=28, values=1, nbytes=8, activation="float", words=((0, 8),)):
    """One little-endian float64. Its value is rounded to float32, and is infinite beyond that range."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):  # signalling NaNs stay NaN
            return np.ascontiguousarray(blocks).view("<f8").astype(np.float32)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        return values.astype("<f8").view(np.uint8).reshape(-1, 8)
