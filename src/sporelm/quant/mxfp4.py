"""MXFP4: 32 four-bit floats and a power of two."""

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.format import QuantFormat
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED, round_to_e2m1
from sporelm.quant.packing import join_nibbles, split_nibbles
from sporelm.quant.superblocks import round_in_chunks


class MXFP4(QuantFormat, ggml_id=39, values=32, nbytes=17, words=()):
    """[byte: exponent + 127][16 bytes]: value = E2M1 number of the nibble * 2^exponent.

    The numbers are 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negated. The low nibbles are values 0 to 15, the high ones
    values 16 to 31. Exponent byte 255 is NaN in the OCP microscaling formats, but 2^128 here and in ggml.
    """

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):  # infinite with the largest exponents: loaders check for that
            return E2M1_DOUBLED[split_nibbles(blocks[:, 1:], 16)] * _half_steps(blocks[:, :1])

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        exponents, codes = round_in_chunks(_round, values)
        return np.concatenate([exponents, join_nibbles(codes, 16)], axis=1)


def _half_steps(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return 2^(exponent byte - 128), of any shape; the two smallest are subnormal in float32."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def _round(values: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Round float32 [n, 32] to exponent bytes uint8 [n, 1] and codes uint8 [n, 32], as ggml does."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    # In float32 a logarithm just below an integer rounds up to it, as in ggml.
    logarithms = np.log2(largest, dtype=np.float64).astype(np.float32)
    exponents = np.where(largest > 0, np.floor(logarithms) + np.float32(125), np.float32(0))
    stored = exponents.astype(np.int32).astype(np.uint8)  # below 2^-125 it wraps around and all numbers become 0
    return stored, round_to_e2m1(values, _half_steps(stored))
