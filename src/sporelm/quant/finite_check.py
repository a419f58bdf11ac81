"""A check that the floats of blocks are finite. For most formats a few bytes of each block are enough."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.mxfp4 import MXFP4
from sporelm.quant.nvfp4 import NVFP4

Words = tuple[tuple[int, int], ...]

# Formats whose words are all floats (except the fifth bits of Q5_0 and Q5_1), formats where only the first word is one,
# and the float words of formats that only Hugging Face folders have.
FLOAT_WORDS = {
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q1_0", "Q2_0", "IQ4_NL", "NF4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "IQ2_S", "IQ3_S"),
}
FIFTH_BITS = (("Q5_0", (2, 4)), ("Q5_1", (4, 4)))
FIRST_WORD_FLOAT = {"IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ4_XS"}
MXFP4_MAX_EXPONENT = 253  # the smallest exponent byte beyond float32's range; all scales of NVFP4 are finite
INT8_MAX_SCALE = np.float32(2.0**120)  # with smaller scales no byte leaves float32's range
FOLDER_FLOAT_WORDS = {"UINT4": ((0, 2),), "UINT8": ((0, 2),)}


def has_only_finite(number_format: type[QuantFormat], blocks: NDArray[np.uint8]) -> bool:
    """Return whether all values and scales of blocks, uint8 [n, nbytes], are finite."""
    words = _find_float_words(number_format)
    return (
        _are_values_finite(number_format, blocks) if words is None else _are_words_finite(number_format, blocks, words)
    )


def _find_float_words(number_format: type[QuantFormat]) -> Words | None:
    """Return (offset, width) of a block's floats; None for formats whose floats are not stored as words."""
    name = number_format.name
    words = number_format.words
    if name in FLOAT_WORDS:
        return tuple(word for word in words if (name, word) not in FIFTH_BITS)
    return words[:1] if name in FIRST_WORD_FLOAT else FOLDER_FLOAT_WORDS.get(name.partition("_")[0])


def _are_words_finite(number_format: type[QuantFormat], blocks: np.ndarray, words: Words) -> bool:
    """Return whether the float words of blocks, uint8 [n, nbytes], are finite."""
    half = np.uint16(0x7F80 if number_format.name == "BF16" else 0x7C00)
    for offset, width in words:
        exponent, word = (np.uint32(0x7F80_0000), "<u4") if width == 4 else (half, "<u2")
        if (blocks[:, offset : offset + width].view(word) & exponent == exponent).any():
            return False
    return True


def _are_values_finite(number_format: type[QuantFormat], blocks: np.ndarray) -> bool:
    """Return whether the dequantized values are finite, unless the scale bytes already answer it."""
    if number_format is NVFP4 or (number_format is MXFP4 and (blocks[:, 0] < MXFP4_MAX_EXPONENT).all()):
        return True
    is_scaled = number_format.name.startswith("INT8_")
    with np.errstate(all="ignore"):
        if is_scaled and (np.abs(np.ascontiguousarray(blocks[:, :4]).view("<f4")) < INT8_MAX_SCALE).all():
            return True
        return bool(np.isfinite(number_format.dequantize(blocks)).all())
