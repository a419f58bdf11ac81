"""NVFP4: 64 four-bit floats, with an eight-bit float for each sixteen."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.levels import E2M1_DOUBLED, nearest_e2m1
from sporelm.quant.packing import join_nibbles, split_nibbles, stepped
from sporelm.quant.superblocks import in_parts

Floats = NDArray[np.float32]
LARGEST = 0x7E  # the byte of 448; the next one is NaN in E4M3


def _half_scales() -> Floats:
    """Half of what each byte stands for, float32 [256]: four exponent bits (bias 7), three of mantissa; NaN is 0.

    The highest bit would be the sign and does not count.
    """
    exponents, mantissas = np.divmod(np.arange(256) & 127, 8)
    numbers = np.where(exponents == 0, mantissas * 2.0**-9, (1 + mantissas / 8) * 2.0 ** (exponents - 7.0))
    numbers[0x7F] = 0
    return (numbers / 2).astype(np.float32)


HALF_SCALES = _half_scales()


class NVFP4(QuantFormat, ggml_id=40, values=64, nbytes=36, words=()):
    """[4 bytes: E4M3 scales of 16 values][32 bytes]: value = E2M1 number of the nibble * scale.

    The numbers are MXFP4's. Of each eight of the 32 bytes the low nibbles are values 0 to 7, the high ones 8 to 15.
    The float32 scale of a whole tensor is a tensor of its own in a file and no part of this.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        codes = split_nibbles(blocks[:, 4:], 8)
        ones = np.ones((len(blocks), 1), np.float32)
        return stepped(ones, HALF_SCALES[blocks[:, :4]], E2M1_DOUBLED[codes])

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        scales, codes = in_parts(_round, values)
        return np.concatenate([scales, join_nibbles(codes, 8)], axis=1)


def _round(values: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """float32 [n, 64] -> scales uint8 [n, 4], codes uint8 [n, 64]."""
    groups = values.reshape(-1, 4, 16)
    scales = _nearest_e4m3(np.abs(groups).max(axis=2) / np.float32(6))
    return scales, nearest_e2m1(groups, HALF_SCALES[scales][:, :, None]).reshape(-1, 64)


def _nearest_e4m3(numbers: Floats) -> NDArray[np.uint8]:
    """Numbers not below 0 as E4M3 bytes, halves upward, float32 -> uint8 of that shape.

    As in ggml, all that would have the highest exponent, from 248 on, becomes 448.
    """
    clipped = np.minimum(numbers, np.float32(448))
    # Bytes of normal numbers are the upper bits of their float32, with the exponent counted from another start.
    upper = ((clipped.view(np.int32) + np.int32(1 << 19)) >> np.int32(20)) - np.int32((127 - 7) << 3)
    tiny = np.minimum((clipped * np.float32(512) + np.float32(0.5)).astype(np.int32), 7)
    return np.where(clipped < np.float32(2**-6), tiny, np.where(upper < 0x78, upper, LARGEST)).astype(np.uint8)
