"""UINT8: bytes with a float16 scale and an integer zero point for each group of 32, 64 or 128 values.

Asymmetric 8-bit weights of GPTQ. GGUF has no such type: `checkpoints/quantized` makes these blocks.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_halves


class GroupedUint8:
    """[float16 scale][int16 zero][int8 numbers]: value = (number - zero) * scale, exact in float32.

    Numbers and zero point are the unsigned ones minus 128, so that the numbers are signed.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        zero = np.ascontiguousarray(blocks[:, 2:4]).view("<i2")
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return (blocks[:, 4:].view(np.int8) - zero).astype(np.float32) * read_halves(blocks, 0)


class UINT8_32(GroupedUint8, QuantFormat, values=32, nbytes=36, words=((0, 2), (2, 2))):
    """Groups of 32."""


class UINT8_64(GroupedUint8, QuantFormat, values=64, nbytes=68, words=((0, 2), (2, 2))):
    """Groups of 64."""


class UINT8_128(GroupedUint8, QuantFormat, values=128, nbytes=132, words=((0, 2), (2, 2))):
    """Groups of 128."""
