"""UINT8: value = (integer - zero) * scale, in groups of 32, 64 or 128. Integers are kept without a sign: plus 128."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    read_pairs,
    zero_steps,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 8, 128)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(blocks[:, 4:] ^ 128, read_pairs(blocks, 0))


FORMATS = {
    size: PlaneFormat(
        bits=8, group=size, unpack=unpack, level=level, steps=zero_steps, scale_type=torch.int32, has_offsets=True
    )
    for size in (32, 64, 128)
}
