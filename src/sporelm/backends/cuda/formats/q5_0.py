"""Q5_0: value = (5-bit integer - 16) * scale, in groups of 32."""

import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    plain_steps,
    read_halves,
    split_fields,
    split_nibbles,
    wide_field_integer,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return wide_field_integer(words, extra, magic, FIELD, 4, 1, 16)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(
        split_nibbles(blocks[:, 6:], 16) | split_fields(blocks[:, 2:6], 1) << 4, read_halves(blocks, 0)
    )


FORMAT = PlaneFormat(bits=4, extra_bits=1, group=32, unpack=unpack, level=level, steps=plain_steps)
