"""Q5_1: 32 numbers of five bits, one scale and one minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.block_rounding import fit_affine, round_affine, weigh_by_row
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_bits, join_nibbles, read_halves, split_bits, split_nibbles, to_halves


class Q5_1(QuantFormat, ggml_id=7, values=32, nbytes=24, words=((0, 2), (2, 2), (4, 4)), can_weigh=True):
    """[float16 scale][float16 minimum][32-bit word of fifth bits][16 bytes].

    value = (fifth bit * 16 + nibble) * scale + minimum. Bit j of the word belongs to value j. The low nibbles are
    values 0 to 15, the high nibbles values 16 to 31.
    """

    weigh = staticmethod(weigh_by_row)

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale, minimum = np.split(read_halves(blocks, 0, 2), 2, axis=1)
        integers = split_nibbles(blocks[:, 8:], 16) | split_bits(blocks[:, 4:8]) << np.uint8(4)
        with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders check for
            return integers.astype(np.float32) * scale + minimum

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        if weights is None:
            numbers, integers = round_affine(values, 31)
        else:
            numbers, integers = fit_affine(values, 31, weights)
        fifth = join_bits(integers >> np.uint8(4))
        return np.concatenate([to_halves(numbers), fifth, join_nibbles(integers, 16)], axis=1)
