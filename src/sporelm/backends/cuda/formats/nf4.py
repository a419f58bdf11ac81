"""NF4: value = level of the nibble * scale, in groups of 64."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    plain_steps,
    read_singles,
    split_nibbles,
    table_level,
)
from sporelm.quant.nf4 import NF4_LEVELS


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return table_level(words, table, FIELD, 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(split_nibbles(blocks[:, 4:], 16), read_singles(blocks, 0))


FORMAT = PlaneFormat(
    bits=4,
    group=64,
    unpack=unpack,
    level=level,
    steps=plain_steps,
    is_lifted=False,
    table=tuple(map(float, NF4_LEVELS)),
    scale_type=torch.float32,
)
