"""Q4_K: value = nibble * step - minimum, in groups of 32 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.affine_steps import affine_steps, join_bytes, split_scales
from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    read_pairs,
    split_nibbles,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 4, 0)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(
        split_nibbles(blocks[:, 16:], 32), join_bytes(*split_scales(blocks[:, 4:16])), read_pairs(blocks, 0)
    )


FORMAT = PlaneFormat(
    bits=4,
    group=32,
    unpack=unpack,
    level=level,
    steps=affine_steps,
    scale_type=torch.int16,
    super_type=torch.int32,
    has_offsets=True,
)
