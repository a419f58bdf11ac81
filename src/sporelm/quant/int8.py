"""INT8: signed bytes with a float32 scale for each group of 32, 64 or 128 values.

What folders hold as int8 with a scale for each group, each row or the whole tensor: such a scale is repeated. No GGUF
file has it: `weights/quantized` makes it.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat


class ScaledBytes:
    """[float32 scale][int8 numbers]: value = number * scale."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
        with np.errstate(invalid="ignore", over="ignore"):  # loaders look for what is not finite
            return blocks[:, 4:].view(np.int8).astype(np.float32) * scale


class INT8_32(ScaledBytes, QuantFormat, values=32, nbytes=36, words=((0, 4),)):
    """Groups of 32."""


class INT8_64(ScaledBytes, QuantFormat, values=64, nbytes=68, words=((0, 4),)):
    """Groups of 64."""


class INT8_128(ScaledBytes, QuantFormat, values=128, nbytes=132, words=((0, 4),)):
    """Groups of 128."""
