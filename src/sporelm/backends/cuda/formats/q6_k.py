"""Q6_K: value = (6-bit integer - 32) * (factor * scale), in groups of 16 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    read_halves,
    split_bit_pairs,
    split_nibbles,
    wide_field_integer,
)
from sporelm.backends.cuda.formats.signed_steps import signed_steps


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return wide_field_integer(words, extra, magic, FIELD, 4, 2, 32)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = split_nibbles(blocks[:, :128], 64) | split_bit_pairs(blocks[:, 128:192]) << 4
    return UnpackedBlocks(codes, blocks[:, 192:208] ^ 128, read_halves(blocks, 208))


FORMAT = PlaneFormat(
    bits=4,
    extra_bits=2,
    group=16,
    unpack=unpack,
    level=level,
    steps=signed_steps,
    scale_type=torch.uint8,
    super_type=torch.float16,
)
