"""UINT4: value = (nibble - zero) * scale, in groups of 32, 64 or 128."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    read_pairs,
    split_nibbles,
    zero_steps,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 4, 0)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 4:], 16), read_pairs(blocks, 0))


FORMATS = {
    size: PlaneFormat(
        bits=4, group=size, unpack=unpack, level=level, steps=zero_steps, scale_type=torch.int32, has_offsets=True
    )
    for size in (32, 64, 128)
}
