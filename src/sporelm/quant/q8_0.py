"""Q8_0: 32 signed bytes and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat, inverse_or_zero


class Q8_0(QuantFormat, ggml_id=8, values=32, nbytes=34):
    """[float16 scale][32 int8]: value = int8 * scale."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
        return blocks[:, 2:].view(np.int8).astype(np.float32) * scale

    @staticmethod
    def quantize(values: NDArray[np.float32]) -> NDArray[np.uint8]:
        scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        scaled = values * inverse_or_zero(scale)
        with np.errstate(over="ignore"):
            half_scale = scale.astype("<f2")
        # ggml rounds halves away from zero; adding 0.5 first would itself round, so the fraction is compared.
        whole = np.trunc(scaled)
        rounded = whole + np.where(np.abs(scaled - whole) >= 0.5, np.sign(scaled), np.float32(0))
        return np.concatenate([half_scale.view(np.uint8), rounded.astype(np.int8).view(np.uint8)], axis=1)
