"""Q8_K: 256 int8 numbers, their float32 scale and sums. ggml's format of activations; no model file has it."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import list_words, read_words
from sporelm.quant.scale_search import round_to_int


class Q8_K(QuantFormat, ggml_id=15, values=256, nbytes=292, activation="float", words=((0, 4), *list_words(260, 16))):
    """[float32 scale][256 int8][16 int16: sums of 16 integers]: value = integer * scale; the sums are ignored."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scales = read_words(blocks, 0, 1, 4).view("<f4")
        with np.errstate(invalid="ignore", over="ignore"):  # loaders check for NaN and infinity
            return np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32) * scales

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        first = np.abs(values).argmax(axis=1)[:, None]
        largest = np.take_along_axis(values, first, axis=1)
        with np.errstate(all="ignore"):  # infinite for tiny values, whose bits then give 0, as in C
            inverse = np.float32(-127) / largest
            integers = np.minimum(round_to_int(values * inverse), 127).astype(np.int8)
            scales = np.where(largest == 0, np.float32(0), np.float32(1) / inverse)
        integers[largest[:, 0] == 0] = 0
        sums = np.add.reduce(integers.reshape(-1, 16, 16), axis=2, dtype=np.int16)
        parts = (scales.astype("<f4"), integers, sums.astype("<i2"))
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
