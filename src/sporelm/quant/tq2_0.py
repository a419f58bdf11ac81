"""TQ2_0: 256 values of -1, 0 and 1 with one scale, four to a byte."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_bit_pairs, read_halves, split_bit_pairs, to_halves
from sporelm.quant.ternary_rounding import round_ternary


class TQ2_0(QuantFormat, ggml_id=35, values=256, nbytes=66, activation="int8/256", words=((64, 2),)):
    """[64 bytes: bit pairs][float16 scale]: value = (pair - 1) * scale; `packing.split_bit_pairs` has their order."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        signed = split_bit_pairs(blocks[:, :64]).view(np.int8) - np.int8(1)
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return signed.astype(np.float32) * read_halves(blocks, 64)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        scales, integers = round_ternary(values)
        return np.concatenate([join_bit_pairs(integers), to_halves(scales)], axis=1)
