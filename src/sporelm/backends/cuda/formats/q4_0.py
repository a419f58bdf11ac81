"""Q4_0: value = (nibble - 8) * scale, in groups of 32."""

import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    plain_steps,
    read_halves,
    split_nibbles,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 4, 8)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 2:], 16), read_halves(blocks, 0))


FORMAT = PlaneFormat(bits=4, group=32, unpack=unpack, level=level, steps=plain_steps)
