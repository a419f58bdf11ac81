"""Q2_0: 64 numbers of two bits and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat, inverse_or_zero
from sporelm.quant.packing import read_halves, spread_bits, to_halves
from sporelm.quant.ternary_rounding import round_ternary


class Q2_0(QuantFormat, ggml_id=42, values=64, nbytes=18):
    """[float16 scale][16 bytes of four values, lowest bits first]: value = (pair - 1) * scale, so -1, 0, 1 or 2."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        signed = spread_bits(blocks[:, 2:], 2).view(np.int8) - np.int8(1)
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return signed.astype(np.float32) * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        scales, integers = round_ternary(values)
        is_tiny = (scales != 0) & (inverse_or_zero(scales) == 0)
        integers[is_tiny[:, 0]] = 0  # as in ggml; the scale is stored as 0
        fours = integers.reshape(-1, 16, 4) << np.arange(0, 8, 2, dtype=np.uint8)
        return np.concatenate([to_halves(scales), np.bitwise_or.reduce(fours, axis=2)], axis=1)
