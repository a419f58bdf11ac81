"""IQ4_NL: 32 codes of non-uniform levels and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.nonuniform_levels import IQ4_LEVELS, Floats, round_to_iq4, search_iq4_scale, spread_weights
from sporelm.quant.packing import join_nibbles, read_halves, split_nibbles, to_halves
from sporelm.quant.superblocks import round_in_chunks


class IQ4_NL(QuantFormat, ggml_id=20, values=32, nbytes=18, can_weigh=True):
    """[float16 scale][16 bytes]: value = `nonuniform_levels.IQ4_LEVELS[nibble]` * scale.

    The low nibbles of the 16 bytes are values 0 to 15, the high nibbles values 16 to 31.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):  # signalling NaNs stay NaN
            return IQ4_LEVELS[split_nibbles(blocks[:, 2:], 16)] * read_halves(blocks, 0)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        scales, codes = round_in_chunks(_round, values, weights)
        return np.concatenate([to_halves(scales), join_nibbles(codes, 16)], axis=1)


def _round(values: Floats, weights: Floats | None = None) -> tuple[Floats, NDArray[np.uint8]]:
    """Round float32 [n, 32] to scales [n, 1] and codes uint8 [n, 32]."""
    x = np.ascontiguousarray(values.T)
    importance = None if weights is None else np.ascontiguousarray(weights.T) * spread_weights(x)
    scales = search_iq4_scale(x, importance)[:, None]
    inverse = np.where(scales != 0, np.float32(1) / scales, np.float32(0))
    return scales, round_to_iq4(values * inverse)
