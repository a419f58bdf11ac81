"""Q1_0: 128 signs and one scale."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.column_sums import sum_columns
from sporelm.quant.format import QuantFormat
from sporelm.quant.packing import read_halves, to_halves


class Q1_0(QuantFormat, ggml_id=41, values=128, nbytes=18):
    """[float16 scale][16 bytes]: value = scale where the bit is set, -scale where not; lowest bits first."""

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        positive = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").view(np.bool_)
        scales = read_halves(blocks, 0)
        return np.where(positive, scales, -scales)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        with np.errstate(over="ignore"):  # magnitudes are added in order, as in C: see `scale_search`
            sums = sum_columns(np.abs(np.ascontiguousarray(values.T)))
        scales = to_halves((sums / np.float32(128))[:, None])
        return np.concatenate([scales, np.packbits(values >= 0, axis=1, bitorder="little")], axis=1)
