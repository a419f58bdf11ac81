"""IQ4_NL: 32 codes of uneven levels and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.levels import CURVED, Floats, nearest_curved, search_curved_scale, spread_of
from sporelm.quant.packing import join_nibbles, read_halves, split_nibbles, to_halves
from sporelm.quant.superblocks import in_parts


class IQ4_NL(QuantFormat, ggml_id=20, values=32, nbytes=18, weighted=True):
    """[float16 scale][16 bytes]: value = level of the nibble (`levels.CURVED`) * scale.

    The low nibbles of the 16 bytes are values 0 to 15, the high nibbles values 16 to 31.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):  # a NaN that signals is one all the same
            return CURVED[split_nibbles(blocks[:, 2:], 16)] * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        scales, codes = in_parts(_round, values, weights)
        return np.concatenate([to_halves(scales), join_nibbles(codes, 16)], axis=1)


def _round(values: Floats, weights: Floats | None = None) -> tuple[Floats, NDArray[np.uint8]]:
    """float32 [n, 32] -> scales [n, 1], codes uint8 [n, 32]."""
    x = np.ascontiguousarray(values.T)
    given = None if weights is None else np.ascontiguousarray(weights.T) * spread_of(x)
    scales = search_curved_scale(x, given)[:, None]
    inverse = np.where(scales != 0, np.float32(1) / scales, np.float32(0))
    return scales, nearest_curved(values * inverse)
