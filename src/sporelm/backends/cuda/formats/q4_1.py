"""Q4_1: value = nibble * scale + minimum, in groups of 32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    offset_steps,
    read_pairs,
    split_nibbles,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 4, 0)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 4:], 16), read_pairs(blocks, 0))


FORMAT = PlaneFormat(
    bits=4, group=32, unpack=unpack, level=level, steps=offset_steps, scale_type=torch.int32, has_offsets=True
)
