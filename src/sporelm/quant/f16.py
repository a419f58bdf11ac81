"""F16: IEEE half precision."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class F16(QuantFormat, ggml_id=1, values=1, nbytes=2, activation="float"):
    """One little-endian float16. Values beyond its range (65504) become infinite, as in IEEE rounding."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        with np.errstate(over="ignore"):
            return values.astype("<f2").view(np.uint8).reshape(-1, 2)
