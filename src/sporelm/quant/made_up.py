"""Blocks of formats that nobody can round to here: any codes are valid, so they are random, and only the size fits."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_words

# Where blocks have their float16 factor. IQ1_M's is four bits in each of the four words from there on.
FACTOR_AT = dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), 0) | {"IQ1_M": 48}
QUARTERS = np.arange(0, 16, 4, dtype=np.uint16)


def made_up_blocks(
    number_format: type[QuantFormat], raw: NDArray[np.uint8], values: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Blocks of one of FACTOR_AT from random bytes, whose values are as large as the given ones in the mean square.

    uint8 [n, nbytes], float32 [n, values] -> uint8 [n, nbytes].
    """
    plain = number_format.dequantize(with_factors(number_format, raw, np.ones(len(raw), np.float16)))
    wanted, found = (np.sqrt(np.mean(np.square(each, dtype=np.float64), axis=1)) for each in (values, plain))
    return with_factors(number_format, raw, (wanted / found).astype(np.float16))


def with_factors(
    number_format: type[QuantFormat], blocks: NDArray[np.uint8], factors: NDArray[np.float16]
) -> NDArray[np.uint8]:
    """A copy of blocks of one of FACTOR_AT, uint8 [n, nbytes], with other factors, float16 [n]."""
    result, bits = blocks.copy(), factors.astype("<f2").view("<u2")[:, None]
    start = FACTOR_AT[number_format.name]
    if number_format.name == "IQ1_M":
        bits = (read_words(blocks, start, 4, 2) & 0x0FFF | (bits >> QUARTERS & 15) << 12).astype("<u2")
    result[:, start : start + 2 * bits.shape[1]] = np.ascontiguousarray(bits).view(np.uint8)
    return result
