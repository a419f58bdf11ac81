"""TQ1_0: 256 values of -1, 0 and 1 with one scale, five to a byte."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_halves, to_halves
from sporelm.quant.ternary_rounding import round_ternary

# (first byte, number of bytes, digits per byte): value d * bytes + k of a part is digit d of byte k.
PARTS = ((0, 32, 5), (32, 16, 5), (48, 4, 4))
POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


class TQ1_0(QuantFormat, ggml_id=34, values=256, nbytes=54, activation="int8/256", words=((52, 2),)):
    """[48 bytes: five values each][4 bytes: four values each][float16 scale]: value = (digit - 1) * scale.

    A byte / 256 is a fraction, rounded up, whose base-3 digits are the values in order: multiplied by 3^d in 8 bits it
    begins with digit d. PARTS defines the layout.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        digits = []
        for start, nbytes, count in PARTS:
            fractions = blocks[:, None, start : start + nbytes] * POWERS[:count]
            digits.append((fractions.astype(np.uint16) * 3 >> 8).reshape(-1, nbytes * count))
        with np.errstate(invalid="ignore"):  # an infinite scale times 0 is NaN, which loaders check for
            return (np.concatenate(digits, axis=1).astype(np.float32) - np.float32(1)) * read_halves(blocks, 52)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        scales, integers = round_ternary(values)
        parts = []
        start = 0
        for _, nbytes, count in PARTS:
            digits = integers[:, start : start + nbytes * count].reshape(-1, count, nbytes).astype(np.uint16)
            whole = np.add.reduce(digits * POWERS[4::-1][:count], axis=1)
            parts.append(((whole * 256 + 242) // 243).astype(np.uint8))
            start += nbytes * count
        return np.concatenate([*parts, to_halves(scales)], axis=1)
