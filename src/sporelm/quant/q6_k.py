"""Q6_K: 256 numbers of six bits in sixteen groups, each with an 8-bit scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import join_bit_pairs, join_nibbles, read_halves, split_bit_pairs, split_nibbles, to_halves
from sporelm.quant.superblocks import round_signed_groups


class Q6_K(QuantFormat, ggml_id=14, values=256, nbytes=210, activation="int8/256", words=((208, 2),), can_weigh=True):
    """[128 bytes: low nibbles][64 bytes: upper bit pairs][16 int8: scales of groups of 16][float16 scale].

    value = (pair * 16 + nibble - 32) * (scale * group scale). In each 64 of the 128 bytes the low nibbles are 64
    values and the high nibbles the next 64. `packing.split_bit_pairs` defines the layout of the 64 bytes.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        integers = split_nibbles(blocks[:, :128], 64) | split_bit_pairs(blocks[:, 128:192]) << np.uint8(4)
        signed = (integers.view(np.int8) - np.int8(32)).reshape(-1, 16, 16)
        scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            steps = read_halves(blocks, 208) * scales
            return (signed.astype(np.float32) * steps[:, :, None]).reshape(-1, 256)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        factors, scales, integers = round_signed_groups(values, weights)
        upper = join_bit_pairs(integers >> np.uint8(4))
        parts = [join_nibbles(integers, 64), upper, scales.view(np.uint8), to_halves(factors)]
        return np.concatenate(parts, axis=1)
