"""Weights of int8 blocks: integers with a scale, and for some formats an offset, for each group of 16 or 32 numbers.

A number is integer * scale + offset, in float32: bit for bit what `QuantFormat.dequantize` returns. Integers of fewer
than 8 bits take 8 here. Other formats (codebooks of vectors) are not of this form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sporelm.quant.nonuniform_levels import IQ4_LEVELS
from sporelm.quant.packing import (
    read_halves,
    split_bit_pairs,
    split_bit_planes,
    split_bits,
    split_nibbles,
    split_scales,
)

CHUNK_BLOCKS = 1 << 14  # unpacked at a time, which bounds the temporaries


class Unpacked(NamedTuple):
    """Blocks taken apart."""

    integers: NDArray[np.int8]  # [n, values]
    scales: NDArray[np.float32]  # [n, groups]
    offsets: NDArray[np.float32] | None = None  # [n, groups]


@dataclass(frozen=True)
class BlockUnpacker:
    """How blocks of a format are taken apart."""

    group: int  # numbers that share a scale
    scale_type: torch.dtype  # that holds every scale and offset of the format
    has_offsets: bool
    unpack: Callable[[NDArray[np.uint8]], Unpacked]


def _q4_0(blocks: NDArray[np.uint8]) -> Unpacked:
    return Unpacked(split_nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8), read_halves(blocks, 0))


def _q4_1(blocks: NDArray[np.uint8]) -> Unpacked:
    factors = read_halves(blocks, 0, 2)
    return Unpacked(split_nibbles(blocks[:, 4:], 16).view(np.int8), factors[:, :1], factors[:, 1:])


def _q5_0(blocks: NDArray[np.uint8]) -> Unpacked:
    integers = split_nibbles(blocks[:, 6:], 16) | split_bits(blocks[:, 2:6]) << np.uint8(4)
    return Unpacked(integers.view(np.int8) - np.int8(16), read_halves(blocks, 0))


def _q5_1(blocks: NDArray[np.uint8]) -> Unpacked:
    integers = split_nibbles(blocks[:, 8:], 16) | split_bits(blocks[:, 4:8]) << np.uint8(4)
    factors = read_halves(blocks, 0, 2)
    return Unpacked(integers.view(np.int8), factors[:, :1], factors[:, 1:])


def _q8_0(blocks: NDArray[np.uint8]) -> Unpacked:
    return Unpacked(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), read_halves(blocks, 0))


def _iq4_nl(blocks: NDArray[np.uint8]) -> Unpacked:
    levels = np.asarray(IQ4_LEVELS).astype(np.int8)
    return Unpacked(levels[split_nibbles(blocks[:, 2:], 16)], read_halves(blocks, 0))


def _affine_super_block(blocks: NDArray[np.uint8], integers: NDArray[np.uint8]) -> Unpacked:
    factors, (scales, minimums) = read_halves(blocks, 0, 2), split_scales(blocks[:, 4:16])
    return Unpacked(
        integers.view(np.int8),
        factors[:, :1] * scales.astype(np.float32),
        -(factors[:, 1:] * minimums.astype(np.float32)),
    )


def _q4_k(blocks: NDArray[np.uint8]) -> Unpacked:
    return _affine_super_block(blocks, split_nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: NDArray[np.uint8]) -> Unpacked:
    fifth = split_bit_planes(blocks[:, 16:48]) << np.uint8(4)
    return _affine_super_block(blocks, split_nibbles(blocks[:, 48:], 32) | fifth)


def _q6_k(blocks: NDArray[np.uint8]) -> Unpacked:
    integers = split_nibbles(blocks[:, :128], 64) | split_bit_pairs(blocks[:, 128:192]) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return Unpacked(integers.view(np.int8) - np.int8(32), read_halves(blocks, 208) * scales)


def _q2_k(blocks: NDArray[np.uint8]) -> Unpacked:
    factors, groups = read_halves(blocks, 80, 2), blocks[:, :16]
    return Unpacked(
        split_bit_pairs(blocks[:, 16:80]).view(np.int8),
        factors[:, :1] * (groups & np.uint8(15)).astype(np.float32),
        -(factors[:, 1:] * (groups >> np.uint8(4)).astype(np.float32)),
    )


HALF, SINGLE = torch.float16, torch.float32
UNPACKERS = {
    "Q4_0": BlockUnpacker(32, HALF, False, _q4_0),
    "Q4_1": BlockUnpacker(32, HALF, True, _q4_1),
    "Q5_0": BlockUnpacker(32, HALF, False, _q5_0),
    "Q5_1": BlockUnpacker(32, HALF, True, _q5_1),
    "Q8_0": BlockUnpacker(32, HALF, False, _q8_0),
    "IQ4_NL": BlockUnpacker(32, HALF, False, _iq4_nl),
    "Q2_K": BlockUnpacker(16, SINGLE, True, _q2_k),
    "Q4_K": BlockUnpacker(32, SINGLE, True, _q4_k),
    "Q5_K": BlockUnpacker(32, SINGLE, True, _q5_k),
    "Q6_K": BlockUnpacker(16, SINGLE, False, _q6_k),
}


class Int8Blocks(NamedTuple):
    """A weight matrix, or experts' matrices, as integers and scales on a device."""

    integers: Tensor  # int8 [..., in]
    scales: Tensor  # float16 or float32 [..., in / group]
    offsets: Tensor | None  # likewise

    def select(self, index: Any) -> "Int8Blocks":
        """Return rows, or experts, by a slice or a tensor of indices."""
        offsets = None if self.offsets is None else self.offsets[index]
        return Int8Blocks(self.integers[index], self.scales[index], offsets)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers, computed in float32 and rounded to `dtype`."""
        grouped = self.integers.unflatten(-1, (self.scales.shape[-1], -1)).float()
        values = grouped.mul_(self.scales.unsqueeze(-1).float())
        if self.offsets is not None:
            values = values.add_(self.offsets.unsqueeze(-1).float())
        return values.flatten(-2).to(dtype)


def can_pack(format: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a weight of this format and shape can be kept as int8 blocks."""
    return format.name in UNPACKERS and len(shape) >= 2


def pack_blocks(format: Any, shape: tuple[int, ...], blocks: NDArray[np.uint8], device: torch.device) -> Int8Blocks:
    """Return a weight's blocks, uint8 of any shape, as integers and scales on a device."""
    unpacker, source = UNPACKERS[format.name], np.ascontiguousarray(blocks).reshape(-1, format.nbytes)
    groups = format.values // unpacker.group
    integers = np.empty((len(source), format.values), np.int8)
    scales = np.empty((len(source), groups), np.float32)
    offsets = np.empty_like(scales) if unpacker.has_offsets else None
    for start in range(0, len(source), CHUNK_BLOCKS):
        part = slice(start, start + CHUNK_BLOCKS)
        with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders check for
            found = unpacker.unpack(source[part])
        integers[part], scales[part] = found.integers, found.scales
        if offsets is not None:
            offsets[part] = found.offsets

    def to_device(array: NDArray[Any], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(array.reshape(*shape[:-1], -1)).to(dtype).to(device)

    return Int8Blocks(
        to_device(integers, torch.int8),
        to_device(scales, unpacker.scale_type),
        None if offsets is None else to_device(offsets, unpacker.scale_type),
    )


def packed_block_bytes(format: Any, shape: tuple[int, ...]) -> int:
    """Return the bytes of `pack_blocks`'s result."""
    unpacker = UNPACKERS[format.name]
    return prod(shape) + prod(shape) // unpacker.group * unpacker.scale_type.itemsize * (1 + unpacker.has_offsets)
