"""Q3_K: value = (3-bit integer - 4) * (factor * group scale), in groups of 16 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    read_halves,
    split_bit_pairs,
    split_bit_planes,
    split_nibbles,
    wide_field_integer,
)
from sporelm.backends.cuda.formats.signed_steps import signed_steps


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return wide_field_integer(words, extra, magic, FIELD, 2, 1, 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = split_bit_pairs(blocks[:, 32:96]) | split_bit_planes(blocks[:, :32]) << 2
    lower, upper = split_nibbles(blocks[:, 96:104], 8), blocks[:, 104:108]
    pairs = torch.cat([upper >> shift & 3 for shift in (0, 2, 4, 6)], dim=1)
    return UnpackedBlocks(codes, (lower | pairs << 4) + 96, read_halves(blocks, 108))


FORMAT = PlaneFormat(
    bits=2,
    extra_bits=1,
    group=16,
    unpack=unpack,
    level=level,
    steps=signed_steps,
    scale_type=torch.uint8,
    super_type=torch.float16,
)
