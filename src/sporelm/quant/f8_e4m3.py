"""F8_E4M3: 8-bit floats with four exponent and three mantissa bits, plain or with one float32 scale per group.

Hugging Face folders have one scale per tensor, per row or per tile; it is repeated for each group. GGUF has no such
type: safetensors files hold the plain one, and `checkpoints/quantized` makes those with scales.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.float8 import ScaledFloat8, list_float8_values
from sporelm.quant.format import QuantFormat

E4M3_VALUES = list_float8_values(3)


class F8_E4M3(QuantFormat, values=1, nbytes=1, activation="float", words=()):
    """One number per byte, without a scale."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return E4M3_VALUES[blocks]


class ScaledE4M3(ScaledFloat8):
    """[float32 scale][numbers]: value = number * scale."""

    CODE_VALUES = E4M3_VALUES


class F8_E4M3_32(ScaledE4M3, QuantFormat, values=32, nbytes=36, activation="float", words=((0, 4),)):
    """Groups of 32."""


class F8_E4M3_64(ScaledE4M3, QuantFormat, values=64, nbytes=68, activation="float", words=((0, 4),)):
    """Groups of 64."""


class F8_E4M3_128(ScaledE4M3, QuantFormat, values=128, nbytes=132, activation="float", words=((0, 4),)):
    """Groups of 128."""


class F8_E4M3_128_W8A8(
    ScaledE4M3, QuantFormat, values=128, nbytes=132, activation="e4m3/128", words=((0, 4),), is_stored=False
):
    """F8_E4M3_128 that multiplies rows of x rounded to E4M3 too (8-bit weights and activations, with `--dtype fp8`)."""
