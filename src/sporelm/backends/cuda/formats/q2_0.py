"""Q2_0: value = (bit pair - 1) * scale, in groups of 64."""

import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    plain_steps,
    read_halves,
    split_fields,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 2, 1)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_fields(blocks[:, 2:], 2), read_halves(blocks, 0))


FORMAT = PlaneFormat(bits=2, group=64, unpack=unpack, level=level, steps=plain_steps)
