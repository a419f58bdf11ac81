"""F8_E5M2: floats of eight bits, five of them exponent and two fraction; alone, or with a float32 scale a group.

Folders have one scale for a tensor, for each row or for each tile of rows and columns: it is repeated. No GGUF file has
them: safetensors files hold the plain one, and `weights/quantized` makes those with scales.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.small_floats import ScaledFloats, eight_bit_floats

E5M2_NUMBERS = eight_bit_floats(2)


class F8_E5M2(QuantFormat, values=1, nbytes=1, activation="float", words=()):
    """One number a byte, without a scale."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return E5M2_NUMBERS[blocks]


class ScaledE5M2(ScaledFloats):
    """[float32 scale][numbers]: value = number * scale."""

    NUMBERS = E5M2_NUMBERS


class F8_E5M2_32(ScaledE5M2, QuantFormat, values=32, nbytes=36, activation="float", words=((0, 4),)):
    """Groups of 32."""


class F8_E5M2_64(ScaledE5M2, QuantFormat, values=64, nbytes=68, activation="float", words=((0, 4),)):
    """Groups of 64."""


class F8_E5M2_128(ScaledE5M2, QuantFormat, values=128, nbytes=132, activation="float", words=((0, 4),)):
    """Groups of 128."""
