"""Random blocks of read-only formats, for synthetic weights: all codes are valid, so only the scales are fitted."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_words

# Byte offset of the float16 scale in a block. IQ1_M's scale is four bits in each of the four words from there on.
SCALE_OFFSETS = dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), 0) | {"IQ1_M": 48}
QUARTERS = np.arange(0, 16, 4, dtype=np.uint16)


def make_random_blocks(
    number_format: type[QuantFormat], raw: NDArray[np.uint8], values: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Make blocks of a format in SCALE_OFFSETS from random bytes, with the root mean square of the given values.

    uint8 [n, nbytes], float32 [n, values] -> uint8 [n, nbytes].
    """
    unscaled = number_format.dequantize(replace_scales(number_format, raw, np.ones(len(raw), np.float16)))
    target_rms, rms = (np.sqrt(np.mean(np.square(each, dtype=np.float64), axis=1)) for each in (values, unscaled))
    return replace_scales(number_format, raw, (target_rms / rms).astype(np.float16))


def replace_scales(
    number_format: type[QuantFormat], blocks: NDArray[np.uint8], scales: NDArray[np.float16]
) -> NDArray[np.uint8]:
    """Return a copy of blocks of a format in SCALE_OFFSETS, uint8 [n, nbytes], with other scales, float16 [n]."""
    result = blocks.copy()
    bits = scales.astype("<f2").view("<u2")[:, None]
    start = SCALE_OFFSETS[number_format.name]
    if number_format.name == "IQ1_M":
        bits = (read_words(blocks, start, 4, 2) & 0x0FFF | (bits >> QUARTERS & 15) << 12).astype("<u2")
    result[:, start : start + 2 * bits.shape[1]] = np.ascontiguousarray(bits).view(np.uint8)
    return result
