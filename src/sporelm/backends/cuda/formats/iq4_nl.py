"""IQ4_NL: value = level of the nibble * scale, in groups of 32."""

import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    plain_steps,
    read_halves,
    split_nibbles,
    table_level,
)
from sporelm.quant.nonuniform_levels import IQ4_LEVELS


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return table_level(words, table, FIELD, 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 2:], 16), read_halves(blocks, 0))


FORMAT = PlaneFormat(
    bits=4,
    group=32,
    unpack=unpack,
    level=level,
    steps=plain_steps,
    is_lifted=False,
    table=tuple(map(float, IQ4_LEVELS)),
)
