"""Q8_1: 32 int8 numbers, their scale and their sum. ggml's format of activations in products; no model file has it."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_halves, to_halves
from sporelm.quant.q8_0 import Q8_0


class Q8_1(QuantFormat, ggml_id=9, values=32, nbytes=36, activation="float", words=((0, 2), (2, 2))):
    """[float16 scale][float16 scale * sum of the integers][32 int8]: value = integer * scale; the sum is ignored."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return np.ascontiguousarray(blocks[:, 4:]).view(np.int8).astype(np.float32) * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        rounded = Q8_0.quantize(values)
        sums = np.add.reduce(rounded[:, 2:].view(np.int8), axis=1, dtype=np.int32, keepdims=True)
        scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        with np.errstate(over="ignore"):
            return np.concatenate([rounded[:, :2], to_halves(sums.astype(np.float32) * scales), rounded[:, 2:]], axis=1)
