"""Q4_1: 32 nibbles, one scale and one minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat, inverse_or_zero


class Q4_1(QuantFormat, ggml_id=3, values=32, nbytes=20, words=((0, 2), (2, 2))):
    """[float16 scale][float16 minimum][16 bytes]: value = nibble * scale + minimum.

    The low nibbles of the 16 bytes are values 0 to 15, the high nibbles values 16 to 31.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale, minimum = np.split(np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32), 2, axis=1)
        packed = blocks[:, 4:]
        nibbles = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)
        return nibbles.astype(np.float32) * scale + minimum

    @staticmethod
    def quantize(values: NDArray[np.float32]) -> NDArray[np.uint8]:
        minimum = values.min(axis=1, keepdims=True)
        scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(15)
        scaled = (values - minimum) * inverse_or_zero(scale)
        with np.errstate(over="ignore"):
            halves = np.concatenate([scale, minimum], axis=1).astype("<f2")
        nibbles = np.minimum(np.trunc(scaled + np.float32(0.5)), 15).astype(np.uint8)
        packed = nibbles[:, :16] | nibbles[:, 16:] << np.uint8(4)
        return np.concatenate([halves.view(np.uint8), packed], axis=1)
