"""Q4_1: 32 nibbles, one scale and one minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.block_rounding import fit_affine, round_affine, weigh_by_row
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_nibbles, read_halves, split_nibbles, to_halves


class Q4_1(QuantFormat, ggml_id=3, values=32, nbytes=20, words=((0, 2), (2, 2)), can_weigh=True):
    """[float16 scale][float16 minimum][16 bytes]: value = nibble * scale + minimum.

    The low nibbles of the 16 bytes are values 0 to 15, the high nibbles values 16 to 31.
    """

    weigh = staticmethod(weigh_by_row)

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale, minimum = np.split(read_halves(blocks, 0, 2), 2, axis=1)
        with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders check for
            return split_nibbles(blocks[:, 4:], 16).astype(np.float32) * scale + minimum

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        if weights is None:
            numbers, integers = round_affine(values, 15)
        else:
            numbers, integers = fit_affine(values, 15, weights)
        return np.concatenate([to_halves(numbers), join_nibbles(integers, 16)], axis=1)
