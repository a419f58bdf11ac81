"""Quantization of activations to int8 or FP8 before a dot product. Kernels do exactly this arithmetic."""

import numpy as np
from numpy.typing import NDArray

from sporelm.tensor.dtype import FLOAT8_MAX, FP8


def quantize_int8(x: NDArray[np.float32], group: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize activations to int8 with one scale per `group` values: float32 [rows, width] -> int8, float32 scales.

    `group` is 32 for the activation type "int8/32" and 256 for "int8/256". Returns (int8 [rows, padded width], float32
    [rows, padded width / group]). A width that is not a multiple of `group` is padded with zeros. All arithmetic is
    float32: scale = amax / 127, inverse = 127 / amax, integer = round(value * inverse), ties to even. Where amax is 0,
    or so small that the inverse overflows, the integers are 0.
    """
    rows, width = x.shape
    groups = -(-width // group)
    padded = np.zeros((rows, groups * group), np.float32)
    padded[:, :width] = x
    grouped = padded.reshape(rows, groups, group)
    largest = np.abs(grouped).max(axis=2, keepdims=True) if x.size else np.zeros((rows, groups, 1), np.float32)
    scales = (largest / np.float32(127)).astype(np.float32, copy=False)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / largest
    inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
    with np.errstate(invalid="ignore"):  # a group with NaN or infinity shows it in its scale
        integers = np.rint(grouped * inverse).astype(np.int8)
    return integers.reshape(rows, groups * group), scales.reshape(rows, groups)


def quantize_e4m3(x: NDArray[np.float32], group: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Quantize activations to E4M3 with one scale per `group` values, for the activation type "e4m3/128".

    x is float32 [rows, width] with whole groups. Returns (the E4M3 numbers as float32 [rows, width], float32 scales
    [rows, width / group]). All arithmetic is float32: scale = amax / 448, inverse = 448 / amax, number = value *
    inverse rounded to E4M3, ties to even. Where the inverse overflows, the numbers are 0.
    """
    rows, width = x.shape
    grouped = x.reshape(rows, width // group, group)
    largest = np.abs(grouped).max(axis=2, keepdims=True) if x.size else np.zeros((rows, width // group, 1), np.float32)
    most = np.float32(FLOAT8_MAX)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = (most / largest).astype(np.float32, copy=False)
        inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
        numbers = FP8.to_f32(FP8.from_f32(grouped * inverse))
    scales = (largest / most).astype(np.float32, copy=False)
    return numbers.reshape(rows, width), scales.reshape(rows, width // group)
