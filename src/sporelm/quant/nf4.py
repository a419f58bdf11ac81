"""NF4 of bitsandbytes: 64 four-bit codes and a float32 scale.

Source: bitsandbytes' code tables and the QLoRA paper (Dettmers et al. 2023). The levels are quantiles of a normal
distribution, scaled to a largest magnitude of 1.
"""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import split_nibbles

NF4_LEVELS = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip


class NF4(QuantFormat, values=64, nbytes=36, activation="float", words=((0, 4),)):
    """[float32 scale][32 bytes]: value = level of the nibble * scale.

    In each 16 bytes the low nibbles are values 0 to 15 of a run of 32, the high nibbles values 16 to 31.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
        with np.errstate(invalid="ignore"):  # loaders check for NaN and infinity
            return NF4_LEVELS[split_nibbles(blocks[:, 4:], 16)] * scale
