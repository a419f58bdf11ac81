"""Q5_1: value = 5-bit integer * scale + minimum, in groups of 32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    offset_steps,
    read_pairs,
    split_fields,
    split_nibbles,
    wide_field_integer,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return wide_field_integer(words, extra, magic, FIELD, 4, 1, 0)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(
        split_nibbles(blocks[:, 8:], 16) | split_fields(blocks[:, 4:8], 1) << 4, read_pairs(blocks, 0)
    )


FORMAT = PlaneFormat(
    bits=4,
    extra_bits=1,
    group=32,
    unpack=unpack,
    level=level,
    steps=offset_steps,
    scale_type=torch.int32,
    has_offsets=True,
)
