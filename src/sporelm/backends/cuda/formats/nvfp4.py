"""NVFP4: value = E2M1 number of the nibble * scale, in groups of 16. Scales are E4M3 without a sign; NaN is 0."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    e2m1_level,
    split_nibbles,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return e2m1_level(words, FIELD)


@triton.jit
def e4m3_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps of half of the number of a byte, for numbers that are doubled."""
    byte = tl.load(scales + row * num_scales + group, mask=mask, other=0).to(tl.int32)
    byte = tl.where(byte == 127, 0, byte & 127)
    return (byte << 20).to(tl.float32, bitcast=True) * 6.64613997892457936e35, 0.0  # 2 ** 119


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 4:], 8), blocks[:, :4])


FORMAT = PlaneFormat(
    bits=4, group=16, unpack=unpack, level=level, steps=e4m3_steps, is_lifted=False, scale_type=torch.uint8
)
