"""UINT4: nibbles with a float16 scale and an integer zero point for each group of 32, 64 or 128 values.

Asymmetric 4-bit weights of GPTQ and AWQ. GGUF has no such type: `checkpoints/quantized` makes these blocks.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_halves, split_nibbles


class GroupedUint4:
    """[float16 scale][int16 zero][bytes]: value = (nibble - zero) * scale, exact in float32.

    In each 16 bytes the low nibbles are values 0 to 15 of a run of 32, the high nibbles values 16 to 31.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        zero = np.ascontiguousarray(blocks[:, 2:4]).view("<i2")
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return (split_nibbles(blocks[:, 4:], 16) - zero).astype(np.float32) * read_halves(blocks, 0)


class UINT4_32(GroupedUint4, QuantFormat, values=32, nbytes=20, words=((0, 2), (2, 2))):
    """Groups of 32."""


class UINT4_64(GroupedUint4, QuantFormat, values=64, nbytes=36, words=((0, 2), (2, 2))):
    """Groups of 64."""


class UINT4_128(GroupedUint4, QuantFormat, values=128, nbytes=68, words=((0, 2), (2, 2))):
    """Groups of 128."""
