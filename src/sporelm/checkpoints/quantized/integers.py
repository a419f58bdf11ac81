"""Weights of small integers: value = (integer - zero) * scale, by output row and group of columns.

They become blocks of a format that holds the same integers and scales exactly. Weights that fit no such format are
stored as float32 values: groups that are not contiguous, scales that float16 cannot represent.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.groups import WIDENED, ColumnBlocks, cut_blocks, sort_columns_by_group
from sporelm.quant import F32, Q4_0, QuantFormat, format_of
from sporelm.quant.packing import join_nibbles, to_halves

Bytes = NDArray[np.uint8]
Factors = tuple[NDArray[np.float32], NDArray[np.int16]]


@dataclass(frozen=True)
class Integers:
    """One weight [out, in] in parts.

    bits       of an unsigned integer, 1 to 8
    group_of   the group of each column, int [in]
    numbers    (start, stop) -> the integers of rows start to stop - 1, uint8 [rows, in]
    factors    (start, stop) -> their scales float32 [rows, groups] and zero points int16 [rows, groups]
    """

    name: str
    parts: tuple[str, ...]
    bits: int
    shape: tuple[int, int]
    group_of: NDArray[np.integer]
    numbers: Callable[[int, int], Bytes]
    factors: Callable[[int, int], Factors]

    def assemble(self) -> AssembledWeight:
        """Return the weight in the format that represents it exactly in the least memory."""
        order = sort_columns_by_group(self.group_of)
        columns = cut_blocks(self.group_of if order is None else self.group_of[order])
        if columns.size == 1:  # sorted groups are not whole blocks either
            order, columns = None, cut_blocks(self.group_of)
        scales, zeros = self.factors(0, self.shape[0])
        symmetric = bool((zeros == 1 << self.bits - 1).all())
        chosen, note = _choose_format(self.bits, columns.size, symmetric, _fits_half(scales))

        def rows(start: int, stop: int) -> Bytes:
            scales, zeros = self.factors(start, stop)
            numbers = self.numbers(start, stop)
            return _to_blocks(chosen, numbers if order is None else numbers[:, order], scales, zeros, columns)

        return AssembledWeight(self.name, chosen, self.shape, self.parts, rows, note, order)


def unpack(packed: NDArray[np.integer], bits: int) -> Bytes:
    """Return the integers of 32-bit words, the lowest bits first, without gaps: [n, words] -> uint8 [n, words * 32 /
    bits]."""
    packed_bytes = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    if bits == 8:
        return packed_bytes
    if bits == 3:  # integers cross word boundaries
        flags = np.unpackbits(packed_bytes, axis=1, bitorder="little").reshape(len(packed_bytes), -1, 3)
        return flags[:, :, 0] | flags[:, :, 1] << np.uint8(1) | flags[:, :, 2] << np.uint8(2)
    result = np.empty((len(packed_bytes), packed_bytes.shape[1], 8 // bits), np.uint8)
    for place in range(8 // bits):
        np.bitwise_and(packed_bytes >> np.uint8(bits * place), np.uint8((1 << bits) - 1), out=result[:, :, place])
    return result.reshape(len(packed_bytes), -1)


def _choose_format(bits: int, size: int, symmetric: bool, fits_half: bool) -> tuple[type[QuantFormat], str]:
    """Return the number format and a note about it."""
    if size == 1:
        return F32, f"their groups are not multiples of 32 columns; {WIDENED}"
    if bits <= 4 and fits_half:
        return (Q4_0 if bits == 4 and symmetric else format_of(f"UINT4_{size}")), ""
    if bits > 4 and symmetric:
        return format_of(f"INT8_{size}"), ""
    if bits > 4 and fits_half:
        return format_of(f"UINT8_{size}"), ""
    return F32, f"float16 cannot represent their scales; {WIDENED}"


def _fits_half(scales: NDArray[np.float32]) -> bool:
    """Return whether float16 represents all scales; non-finite ones count as represented."""
    with np.errstate(over="ignore"):
        return np.array_equal(scales.astype(np.float16).astype(np.float32), scales, equal_nan=True)


def _to_blocks(
    chosen: type[QuantFormat],
    numbers: Bytes,
    scales: NDArray[np.float32],
    zeros: NDArray[np.int16],
    columns: ColumnBlocks,
) -> Bytes:
    """Return rows as blocks: uint8 [rows, in] and their factors -> uint8 [rows, bytes a row]."""
    rows = len(numbers)
    if chosen is F32:
        each = np.repeat(columns.group, columns.size)
        with np.errstate(invalid="ignore", over="ignore"):
            values = (numbers - zeros[:, each]).astype(np.float32) * scales[:, each]
        return np.ascontiguousarray(values, "<f4").view(np.uint8)
    repeats = columns.size // chosen.values
    group = np.repeat(columns.group, repeats)
    scale, zero = scales[:, group].reshape(-1, 1), zeros[:, group].reshape(-1, 1)
    blocks = numbers.reshape(-1, chosen.values)
    if chosen is Q4_0:
        parts = [to_halves(scale), join_nibbles(blocks, 16)]
    elif chosen.name.startswith("UINT4"):
        parts = [to_halves(scale), zero.astype("<i2").view(np.uint8), join_nibbles(blocks, 16)]
    elif chosen.name.startswith("UINT8"):
        parts = [to_halves(scale), (zero - np.int16(128)).astype("<i2").view(np.uint8), blocks ^ np.uint8(128)]
    else:
        parts = [scale.astype("<f4").view(np.uint8), blocks ^ np.uint8(128)]
    return np.concatenate(parts, axis=1).reshape(rows, -1)
