"""MXFP4: value = E2M1 number of the nibble * 2 ** (exponent byte - 127), in groups of 32."""

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
def power_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps of half of 2 ** (byte - 127), for numbers that are doubled: subnormal for the bytes 0 and 1."""
    exponent = tl.load(scales + row * num_scales + group, mask=mask, other=0).to(tl.int32)
    bits = tl.where(exponent > 1, (exponent - 1) << 23, 0x200000 << exponent)
    return bits.to(tl.float32, bitcast=True), 0.0


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 1:], 16), blocks[:, :1])


FORMAT = PlaneFormat(
    bits=4, group=32, unpack=unpack, level=level, steps=power_steps, is_lifted=False, scale_type=torch.uint8
)
