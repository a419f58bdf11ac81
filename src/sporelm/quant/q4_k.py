"""Q4_K: 256 nibbles in eight groups, each with a 6-bit scale and a 6-bit minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_nibbles, split_nibbles, to_halves
from sporelm.quant.search import Tries
from sporelm.quant.superblocks import apply_scales, round_in_groups


class Q4_K(
    QuantFormat, ggml_id=12, values=256, nbytes=144, activation="int8/256", words=((0, 2), (2, 2)), weighted=True
):
    """[float16 scale][float16 minimum][12 bytes: 6-bit scales and minimums of eight groups of 32][128 bytes].

    value = nibble * (scale * group scale) - minimum * group minimum. Of each 32 of the 128 bytes the low nibbles are
    one group, the high nibbles the next. `packing.split_scales` says how the 12 bytes are laid out.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return apply_scales(blocks, split_nibbles(blocks[:, 16:], 32))

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        rounded = round_in_groups(values, weights, levels=15, tries=Tries(-1.0, 0.1, 21))
        return np.concatenate([to_halves(rounded.factors), rounded.scales, join_nibbles(rounded.integers, 32)], axis=1)
