"""Q2_K: value = bit pair * step - minimum, in groups of 16 of a super-block. A byte holds scale and minimum."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    first_half,
    read_pairs,
    second_half,
    small_integer,
    split_bit_pairs,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 2, 0)


@triton.jit
def nibble_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps and offsets of groups."""
    pairs = tl.load(scales + row * num_scales + group, mask=mask, other=0).to(tl.int32)
    step = first_half(factors) * small_integer(pairs & 15, magic)
    return step, (second_half(factors) * (-1.0 / 16)) * small_integer(pairs & 0xF0, magic)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_bit_pairs(blocks[:, 16:80]), blocks[:, :16], read_pairs(blocks, 80))


FORMAT = PlaneFormat(
    bits=2,
    group=16,
    unpack=unpack,
    level=level,
    steps=nibble_steps,
    scale_type=torch.uint8,
    super_type=torch.int32,
    has_offsets=True,
)
