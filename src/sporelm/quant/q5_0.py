"""Q5_0: 32 numbers of five bits and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.block_rounding import fit_signed, round_signed, weigh_by_row
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_bits, join_nibbles, read_halves, split_bits, split_nibbles, to_halves


class Q5_0(QuantFormat, ggml_id=6, values=32, nbytes=22, words=((0, 2), (2, 4)), can_weigh=True):
    """[float16 scale][32-bit word of fifth bits][16 bytes]: value = (fifth bit * 16 + nibble - 16) * scale.

    Bit j of the word belongs to value j. The low nibbles are values 0 to 15, the high nibbles values 16 to 31.
    """

    weigh = staticmethod(weigh_by_row)

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        integers = split_nibbles(blocks[:, 6:], 16) | split_bits(blocks[:, 2:6]) << np.uint8(4)
        signed = integers.view(np.int8) - np.int8(16)
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return signed.astype(np.float32) * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        if weights is None:
            scale, integers = round_signed(values, 16)
        else:
            scale, integers = fit_signed(values, 16, weights)
        fifth = join_bits(integers >> np.uint8(4))
        return np.concatenate([to_halves(scale), fifth, join_nibbles(integers, 16)], axis=1)
