"""Floating-point numbers of eight bits: what each byte stands for.

Source: the OCP 8-bit floating point specification (OFP8), which is also what safetensors' F8_E4M3 and F8_E5M2 hold.
"""

import numpy as np
from numpy.typing import NDArray


def eight_bit_floats(mantissa: int) -> NDArray[np.float32]:
    """The numbers of all bytes, float32 [256]: a sign, 7 - mantissa bits of exponent, `mantissa` bits of fraction.

    With 3 bits of fraction (E4M3) all ones are NaN and there is no infinity; with 2 (E5M2) it is as in float16.
    """
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa, codes & (1 << mantissa) - 1
    bias, share = (1 << 6 - mantissa) - 1, fraction / (1 << mantissa)
    numbers = np.where(exponent == 0, share * 2.0 ** (1 - bias), (1 + share) * 2.0 ** (exponent - float(bias)))
    if mantissa == 3:
        numbers[127] = np.nan
    else:
        numbers[exponent == (1 << 7 - mantissa) - 1] = np.nan
        numbers[127 - (1 << mantissa) + 1] = np.inf
    return np.concatenate([numbers, -numbers]).astype(np.float32)


class ScaledFloats:
    """[float32 scale][eight-bit floats]: value = number * scale. `NUMBERS` says what bytes stand for."""

    NUMBERS: NDArray[np.float32]

    @classmethod
    def dequantize(cls, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
        with np.errstate(invalid="ignore", over="ignore"):  # loaders look for what is not finite
            return cls.NUMBERS[blocks[:, 4:]] * scale
