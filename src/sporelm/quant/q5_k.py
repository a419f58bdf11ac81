"""Q5_K: 256 numbers of five bits in eight groups, each with a 6-bit scale and a 6-bit minimum."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import (
    join_bit_planes,
    join_nibbles,
    split_bit_planes,
    split_nibbles,
    to_halves,
)
from sporelm.quant.scale_search import ScaleCandidates
from sporelm.quant.superblocks import apply_scales, round_affine_groups


class Q5_K(
    QuantFormat, ggml_id=13, values=256, nbytes=176, activation="int8/256", words=((0, 2), (2, 2)), can_weigh=True
):
    """[float16 scale][float16 minimum][12 bytes: 6-bit scales and minimums][32 bytes: fifth bits][128 bytes].

    value = (fifth bit * 16 + nibble) * (scale * group scale) - minimum * group minimum, in eight groups of 32. Bit g
    of the j-th of the 32 bytes belongs to value j of group g. Nibbles and the 12 bytes are laid out as in Q4_K.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        fifth = split_bit_planes(blocks[:, 16:48]) << np.uint8(4)
        return apply_scales(blocks, split_nibbles(blocks[:, 48:], 32) | fifth)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        rounded = round_affine_groups(values, weights, levels=31, candidates=ScaleCandidates(-0.5, 0.1, 16))
        fifth = join_bit_planes(rounded.integers >> np.uint8(4))
        nibbles = join_nibbles(rounded.integers, 32)
        return np.concatenate([to_halves(rounded.factors), rounded.scales, fifth, nibbles], axis=1)
