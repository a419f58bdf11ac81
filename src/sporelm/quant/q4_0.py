"""Q4_0: 32 nibbles and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.block_rounding import fit_signed, round_signed, weigh_by_row
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_nibbles, read_halves, split_nibbles, to_halves


class Q4_0(QuantFormat, ggml_id=2, values=32, nbytes=18, can_weigh=True):
    """[float16 scale][16 bytes]: value = (nibble - 8) * scale.

    The low nibbles of the 16 bytes are values 0 to 15, the high nibbles values 16 to 31.
    """

    weigh = staticmethod(weigh_by_row)

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        signed = split_nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8)
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return signed.astype(np.float32) * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        if weights is None:
            scale, integers = round_signed(values, 8)
        else:
            scale, integers = fit_signed(values, 8, weights)
        return np.concatenate([to_halves(scale), join_nibbles(integers, 16)], axis=1)
