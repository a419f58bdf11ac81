"""NVFP4: 64 four-bit floats with an 8-bit float scale for each sixteen."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED, round_to_e2m1
from sporelm.quant.packing import join_nibbles, scale_groups, split_nibbles
from sporelm.quant.superblocks import round_in_chunks

Floats = NDArray[np.float32]
MAX_SCALE_BYTE = 0x7E  # 448; the next byte is NaN in E4M3


def _list_half_scales() -> Floats:
    """Return half of the value of each byte, float32 [256]: four exponent bits (bias 7), three mantissa bits; NaN is 0.

    The highest bit, the sign, is ignored.
    """
    exponents, mantissas = np.divmod(np.arange(256) & 127, 8)
    numbers = np.where(exponents == 0, mantissas * 2.0**-9, (1 + mantissas / 8) * 2.0 ** (exponents - 7.0))
    numbers[0x7F] = 0
    return (numbers / 2).astype(np.float32)


HALF_SCALES = _list_half_scales()


class NVFP4(QuantFormat, ggml_id=40, values=64, nbytes=36, words=()):
    """[4 bytes: E4M3 scales of 16 values][32 bytes]: value = E2M1 number of the nibble * scale.

    The numbers are those of MXFP4. In each eight of the 32 bytes the low nibbles are values 0 to 7, the high ones 8 to
    15. The float32 scale of a whole tensor is a separate tensor in files and not part of the format.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        codes = split_nibbles(blocks[:, 4:], 8)
        ones = np.ones((len(blocks), 1), np.float32)
        return scale_groups(ones, HALF_SCALES[blocks[:, :4]], E2M1_DOUBLED[codes])

    @staticmethod
    def quantize(values: Floats, weights: Floats | None = None) -> NDArray[np.uint8]:
        scales, codes = round_in_chunks(_round, values)
        return np.concatenate([scales, join_nibbles(codes, 8)], axis=1)


def _round(values: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Round float32 [n, 64] to scales uint8 [n, 4] and codes uint8 [n, 64]."""
    groups = values.reshape(-1, 4, 16)
    scales = _round_to_e4m3(np.abs(groups).max(axis=2) / np.float32(6))
    return scales, round_to_e2m1(groups, HALF_SCALES[scales][:, :, None]).reshape(-1, 64)


def _round_to_e4m3(numbers: Floats) -> NDArray[np.uint8]:
    """Round non-negative numbers to E4M3 bytes, halves up: float32 -> uint8 of that shape.

    As in ggml, numbers that would have the highest exponent (248 and above) become 448.
    """
    clipped = np.minimum(numbers, np.float32(448))
    # Bytes of normal numbers are the upper bits of their float32, with another exponent bias.
    upper = ((clipped.view(np.int32) + np.int32(1 << 19)) >> np.int32(20)) - np.int32((127 - 7) << 3)
    tiny = np.minimum((clipped * np.float32(512) + np.float32(0.5)).astype(np.int32), 7)
    return np.where(clipped < np.float32(2**-6), tiny, np.where(upper < 0x78, upper, MAX_SCALE_BYTE)).astype(np.uint8)
