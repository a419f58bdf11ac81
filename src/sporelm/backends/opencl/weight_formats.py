"""The layout of weights on an OpenCL device: each number format as planes.

A file interleaves codes and scales in blocks of 18 to 210 bytes. Here each of them is an array of its own (a plane), so
that every load is aligned: codes, upper bits of codes, scales of groups, scales of blocks. All formats are unpacked in
runs of RUN values, bit for bit as `QuantFormat.dequantize`, by the functions in `kernels/formats`. Rows are filled with
zeros to whole runs. A format without planes is widened to F32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.packing import (
    join_nibbles,
    split_bit_pairs,
    split_bit_planes,
    split_nibbles,
    split_scales,
)

RUN = 32  # values that a kernel unpacks at once
PLANE_ALIGNMENT = 64  # bytes
MAX_PLANES = 4
# That a kernel may read after the last run of a weight or of rounded rows: for the last run of Q8_0, of 32 bytes,
# load_bytes of kernels/dots/x86.h loads 4 runs of 32 bytes, so 96 bytes beyond it.
OVERREAD_BYTES = 128

Bytes = NDArray[np.uint8]
SplitBlocks = Callable[[Bytes], tuple[NDArray[Any], ...]]  # blocks [n, nbytes] -> planes [n, bytes of a block]


@dataclass(frozen=True)
class WeightFormat:
    """A number format's planes.

    name         of the format and, in lower case, of its file in `kernels/formats`
    values       numbers in a block of the file
    plane_bytes  bytes of a block in each plane
    split        cuts blocks into planes, the last of them halves: scales of blocks; None: rows of plain numbers
    is_wide      whether scales of blocks are kept as float32, for devices that convert halves slowly
    """

    name: str
    values: int
    plane_bytes: tuple[int, ...]
    split: SplitBlocks | None = None
    is_wide: bool = False

    def widen_scales(self) -> "WeightFormat":
        """Return the format with scales of blocks as float32."""
        if self.split is None:
            return self
        return replace(self, plane_bytes=(*self.plane_bytes[:-1], 2 * self.plane_bytes[-1]), is_wide=True)

    def count_blocks(self, shape: tuple[int, ...]) -> int:
        """Return the number of blocks of a weight; of plain numbers, of runs."""
        values = self.values if self.split is not None else RUN
        return prod(shape[:-1]) * -(-shape[-1] // values)

    def plane_offsets(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the byte offsets of planes 1 to MAX_PLANES - 1; 0 for planes that the format lacks."""
        blocks, offset, offsets = self.count_blocks(shape), 0, []
        for nbytes in self.plane_bytes[:-1]:
            offset += -(-blocks * nbytes // PLANE_ALIGNMENT) * PLANE_ALIGNMENT
            offsets.append(offset)
        return (*offsets, *[0] * (MAX_PLANES - 1 - len(offsets)))

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a weight on the device."""
        last = self.plane_offsets(shape)[len(self.plane_bytes) - 2] if len(self.plane_bytes) > 1 else 0
        return last + self.count_blocks(shape) * self.plane_bytes[-1]

    def pack(self, blocks: Bytes, shape: tuple[int, ...], out: Bytes) -> None:
        """Write the planes of a weight, given its blocks as a file stores them, to `out` of `nbytes`."""
        if self.split is None:
            rows = np.ascontiguousarray(blocks).view(np.uint8).reshape(prod(shape[:-1]), -1)
            out.reshape(len(rows), -1)[:, : rows.shape[1]] = rows
            return
        nbytes = blocks.size // self.count_blocks(shape)
        planes = list(self.split(np.ascontiguousarray(blocks).reshape(-1, nbytes)))
        if self.is_wide:
            planes[-1] = np.ascontiguousarray(planes[-1]).view("<f2").astype("<f4")
        for plane, offset in zip(planes, (0, *self.plane_offsets(shape)), strict=False):
            flat = np.ascontiguousarray(plane).view(np.uint8).reshape(-1)
            out[offset : offset + flat.size] = flat


def _split_after(*sizes: int) -> SplitBlocks:
    """Return the cut of blocks into a first part of each size; the rest are codes, which become plane 0."""

    def split(blocks: Bytes) -> tuple[Bytes, ...]:
        *heads, codes = np.split(blocks, np.cumsum(sizes), axis=1)
        return (codes, *heads[::-1])

    return split


def _codes_by_run(codes: Bytes) -> Bytes:
    """Return codes [n, 256] below 16 as nibbles: in each run the first 16 values are low, the last 16 high."""
    return join_nibbles(codes, RUN // 2)


def _bits_by_run(bits: Bytes) -> Bytes:
    """Return bits [n, 256] as a word of 32 bits for each run, bit j of value j."""
    return np.packbits(bits, axis=1, bitorder="little")


def _pairs_by_run(pairs: Bytes) -> Bytes:
    """Return numbers below 4, [n, 256], as 8 bytes for each run: byte j has values j, j + 8, j + 16 and j + 24."""
    runs = pairs.reshape(-1, 4, RUN // 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(runs, axis=1).reshape(len(pairs), -1)


def _group_scales(packed: Bytes) -> Bytes:
    """Return the scale and the minimum of each run: uint8 [n, 12] -> [n, 16]."""
    return np.stack(split_scales(packed), axis=2).reshape(len(packed), -1)


def _split_q4_k(blocks: Bytes) -> tuple[Bytes, ...]:
    return _codes_by_run(split_nibbles(blocks[:, 16:], 32)), _group_scales(blocks[:, 4:16]), blocks[:, :4]


def _split_q5_k(blocks: Bytes) -> tuple[Bytes, ...]:
    codes, fifth = split_nibbles(blocks[:, 48:], 32), split_bit_planes(blocks[:, 16:48])
    return _codes_by_run(codes), _bits_by_run(fifth), _group_scales(blocks[:, 4:16]), blocks[:, :4]


def _split_q6_k(blocks: Bytes) -> tuple[Bytes, ...]:
    codes, upper = split_nibbles(blocks[:, :128], 64), split_bit_pairs(blocks[:, 128:192])
    return _codes_by_run(codes), _pairs_by_run(upper), blocks[:, 192:208], blocks[:, 208:]


F32_FORMAT = WeightFormat("F32", 1, (4 * RUN,))
WEIGHT_FORMATS = {
    each.name: each
    for each in (
        F32_FORMAT,
        WeightFormat("F16", 1, (2 * RUN,)),
        WeightFormat("BF16", 1, (2 * RUN,)),
        WeightFormat("Q4_0", 32, (16, 2), _split_after(2)),
        WeightFormat("Q4_1", 32, (16, 4), _split_after(4)),
        WeightFormat("Q5_0", 32, (16, 4, 2), _split_after(2, 4)),
        WeightFormat("Q5_1", 32, (16, 4, 4), _split_after(4, 4)),
        WeightFormat("Q8_0", 32, (32, 2), _split_after(2)),
        WeightFormat("Q4_K", 256, (128, 16, 4), _split_q4_k),
        WeightFormat("Q5_K", 256, (128, 32, 16, 4), _split_q5_k),
        WeightFormat("Q6_K", 256, (128, 64, 16, 2), _split_q6_k),
    )
}


def find_weight_format(name: str, *, is_wide: bool = False) -> WeightFormat:
    """Return the planes of a number format by its name; those of F32 for a format without."""
    found = WEIGHT_FORMATS.get(name, F32_FORMAT)
    return found.widen_scales() if is_wide else found
