"""Whether the floats of blocks are finite, which a few bytes of each block tell."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.mxfp4 import MXFP4
from sporelm.quant.nvfp4 import NVFP4

Words = tuple[tuple[int, int], ...]

# Formats whose words are floats, but for the fifth bits of Q5_0 and Q5_1; those whose first word alone is one; of
# others in folders, the word that is one.
FLOAT_WORDS = {
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q1_0", "Q2_0", "IQ4_NL", "NF4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "IQ2_S", "IQ3_S"),
}
FIFTH_BITS = (("Q5_0", (2, 4)), ("Q5_1", (4, 4)))
FIRST_WORD = {"IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ4_XS"}
MXFP4_LARGE = 253  # the least exponent with which a number leaves float32; NVFP4's scales are all finite
INT8_LARGE = np.float32(2.0**120)  # with scales below no byte leaves float32
FOLDER_WORDS = {"UINT4": ((0, 2),), "UINT8": ((0, 2),)}


def all_finite(number_format: type[QuantFormat], blocks: NDArray[np.uint8]) -> bool:
    """Whether neither a value of blocks, uint8 [n, nbytes], nor a scale of theirs is NaN or infinite."""
    words = _float_words(number_format)
    return _finite_values(number_format, blocks) if words is None else _finite_words(number_format, blocks, words)


def _float_words(number_format: type[QuantFormat]) -> Words | None:
    """(offset, width) of a block's floats; None of formats whose words are no floats, or whose floats are no words."""
    name, words = number_format.name, number_format.words
    if name in FLOAT_WORDS:
        return tuple(word for word in words if (name, word) not in FIFTH_BITS)
    return words[:1] if name in FIRST_WORD else FOLDER_WORDS.get(name.partition("_")[0])


def _finite_words(number_format: type[QuantFormat], blocks: np.ndarray, words: Words) -> bool:
    """Whether the floats of blocks, uint8 [n, nbytes], are finite: a look at a few bytes of each."""
    half = np.uint16(0x7F80 if number_format.name == "BF16" else 0x7C00)
    for offset, width in words:
        exponent, word = (np.uint32(0x7F80_0000), "<u4") if width == 4 else (half, "<u2")
        if (blocks[:, offset : offset + width].view(word) & exponent == exponent).any():
            return False
    return True


def _finite_values(number_format: type[QuantFormat], blocks: np.ndarray) -> bool:
    """The same by the values themselves, unless the bytes of scales tell."""
    if number_format is NVFP4 or (number_format is MXFP4 and (blocks[:, 0] < MXFP4_LARGE).all()):
        return True
    is_scaled = number_format.name.startswith("INT8_")
    with np.errstate(all="ignore"):
        if is_scaled and (np.abs(np.ascontiguousarray(blocks[:, :4]).view("<f4")) < INT8_LARGE).all():
            return True
        return bool(np.isfinite(number_format.dequantize(blocks)).all())
