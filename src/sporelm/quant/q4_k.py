"""Q4_K: 256 nibbles in eight groups, each with a 6-bit scale and a 6-bit minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_nibbles, split_nibbles, to_halves
from sporelm.quant.scale_search import ScaleCandidates
from sporelm.quant.superblocks import apply_scales, round_affine_groups


class Q4_K(
    QuantFormat, ggml_id=12, values=256, nbytes=144, activation="int8/256", words=((0, 2), (2, 2)), can_weigh=True
):
    """[float16 scale][float16 minimum][12 bytes: 6-bit scales and minimums of eight groups of 32][128 bytes].

    value = nibble * (scale * group scale) - minimum * group minimum. In each 32 of the 128 bytes the low nibbles are
    one group and the high nibbles the next. `packing.split_scales` defines the layout of the 12 bytes.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return apply_scales(blocks, split_nibbles(blocks[:, 16:], 32))

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        rounded = round_affine_groups(values, weights, levels=15, candidates=ScaleCandidates(-1.0, 0.1, 21))
        return np.concatenate([to_halves(rounded.factors), rounded.scales, join_nibbles(rounded.integers, 32)], axis=1)
