"""Q8_0: 32 signed bytes and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat, inverse_or_zero
from sporelm.quant.packing import read_halves, to_halves


class Q8_0(QuantFormat, ggml_id=8, values=32, nbytes=34):
    """[float16 scale][32 int8]: value = int8 * scale."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return blocks[:, 2:].view(np.int8).astype(np.float32) * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        scaled = values * inverse_or_zero(scale)
        # ggml rounds halves away from zero. Adding 0.5 first would round by itself, so the fraction is compared.
        whole = np.trunc(scaled)
        rounded = whole + np.where(np.abs(scaled - whole) >= 0.5, np.sign(scaled), np.float32(0))
        return np.concatenate([to_halves(scale), rounded.astype(np.int8).view(np.uint8)], axis=1)
