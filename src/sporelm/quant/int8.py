"""INT8: signed bytes with a float32 scale for each group of 32, 64 or 128 values.

Hugging Face folders hold int8 weights with a scale per group, per row or per tensor; a scale of a row or a tensor is
repeated for each group. GGUF has no such type: `checkpoints/quantized` makes these blocks.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class ScaledInt8:
    """[float32 scale][int8 numbers]: value = number * scale."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
        with np.errstate(invalid="ignore", over="ignore"):  # loaders check for NaN and infinity
            return blocks[:, 4:].view(np.int8).astype(np.float32) * scale


class INT8_32(ScaledInt8, QuantFormat, values=32, nbytes=36, words=((0, 4),)):
    """Groups of 32."""


class INT8_64(ScaledInt8, QuantFormat, values=64, nbytes=68, words=((0, 4),)):
    """Groups of 64."""


class INT8_128(ScaledInt8, QuantFormat, values=128, nbytes=132, words=((0, 4),)):
    """Groups of 128."""
