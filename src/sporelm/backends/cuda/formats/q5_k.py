"""Q5_K: value = 5-bit integer * step - minimum, in groups of 32 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.affine_steps import affine_steps, join_bytes, split_scales
from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    read_pairs,
    split_bit_planes,
    split_nibbles,
    wide_field_integer,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return wide_field_integer(words, extra, magic, FIELD, 4, 1, 0)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = split_nibbles(blocks[:, 48:], 32) | split_bit_planes(blocks[:, 16:48]) << 4
    return UnpackedBlocks(codes, join_bytes(*split_scales(blocks[:, 4:16])), read_pairs(blocks, 0))


FORMAT = PlaneFormat(
    bits=4,
    extra_bits=1,
    group=32,
    unpack=unpack,
    level=level,
    steps=affine_steps,
    scale_type=torch.int16,
    super_type=torch.int32,
    has_offsets=True,
)
