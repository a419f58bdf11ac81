"""IQ4_XS: value = level of the nibble * (factor * group scale), in groups of 32 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    read_halves,
    split_nibbles,
    table_level,
)
from sporelm.backends.cuda.formats.signed_steps import signed_steps
from sporelm.quant.nonuniform_levels import IQ4_LEVELS


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return table_level(words, table, FIELD, 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    upper = torch.stack([blocks[:, 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)
    scales = split_nibbles(blocks[:, 4:8], 1) | upper << 4
    return UnpackedBlocks(split_nibbles(blocks[:, 8:], 16), scales + 96, read_halves(blocks, 0))


FORMAT = PlaneFormat(
    bits=4,
    group=32,
    unpack=unpack,
    level=level,
    steps=signed_steps,
    is_lifted=False,
    table=tuple(map(float, IQ4_LEVELS)),
    scale_type=torch.uint8,
    super_type=torch.float16,
)
