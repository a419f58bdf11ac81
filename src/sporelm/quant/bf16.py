"""BF16: the upper half of a float32."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat

EXPONENT_BITS = np.uint32(0x7F80_0000)
ABSOLUTE_BITS = np.uint32(0x7FFF_FFFF)
QUIET_BIT = np.uint32(0x0040_0000)


class BF16(QuantFormat, ggml_id=30, values=1, nbytes=2, activation="float"):
    """The upper 16 bits of a float32, little-endian. Rounding is to nearest, ties to even; NaNs become quiet NaNs."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        upper = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
        return (upper << np.uint32(16)).view(np.float32)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        # Cannot overflow: the largest finite pattern rounds up to infinity, which is still below 2^32.
        half_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        is_nan = (bits & ABSOLUTE_BITS) > EXPONENT_BITS
        upper = np.where(is_nan, bits | QUIET_BIT, bits + half_to_even) >> np.uint32(16)
        return upper.astype("<u2").view(np.uint8).reshape(-1, 2)
