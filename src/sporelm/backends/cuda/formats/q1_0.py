"""Q1_0: value = scale where the bit is set, -scale elsewhere, in groups of 128."""

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
    return field_integer(words, magic, FIELD, 1, 0) * 2.0 - (1 << FIELD % 16)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_fields(blocks[:, 2:], 1), read_halves(blocks, 0))


FORMAT = PlaneFormat(bits=1, group=128, unpack=unpack, level=level, steps=plain_steps)
