"""Q8_1: value = integer * scale, in groups of 32. Integers are kept without a sign: plus 128."""

import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    field_integer,
    plain_steps,
    read_halves,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 8, 128)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(blocks[:, 4:] ^ 128, read_halves(blocks, 0))


FORMAT = PlaneFormat(bits=8, group=32, unpack=unpack, level=level, steps=plain_steps)
