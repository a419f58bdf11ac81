"""8-bit floating point: the value of each byte.

Source: the OCP 8-bit floating point specification (OFP8). safetensors' F8_E4M3 and F8_E5M2 hold the same numbers.
"""

import numpy as np
from numpy.typing import NDArray


def list_float8_values(mantissa: int) -> NDArray[np.float32]:
    """Return the values of all 256 bytes, float32 [256]: a sign bit, 7 - mantissa exponent bits, `mantissa` bits.

    With 3 mantissa bits (E4M3) the pattern of all ones is NaN and there is no infinity; with 2 (E5M2) both are encoded
    as in float16.
    """
    codes = np.arange(128)
    exponent = codes >> mantissa
    fraction = (codes & (1 << mantissa) - 1) / (1 << mantissa)
    bias = (1 << 6 - mantissa) - 1
    numbers = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - float(bias)))
    if mantissa == 3:
        numbers[127] = np.nan
    else:
        numbers[exponent == (1 << 7 - mantissa) - 1] = np.nan
        numbers[127 - (1 << mantissa) + 1] = np.inf
    return np.concatenate([numbers, -numbers]).astype(np.float32)


class ScaledFloat8:
    """[float32 scale][8-bit floats]: value = number * scale. `CODE_VALUES` holds the number of each byte."""

    CODE_VALUES: NDArray[np.float32]

    @classmethod
    def dequantize(cls, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
        with np.errstate(invalid="ignore", over="ignore"):  # loaders check for NaN and infinity
            return cls.CODE_VALUES[blocks[:, 4:]] * scale
