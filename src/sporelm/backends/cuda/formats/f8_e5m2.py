"""F8_E5M2: value = number * scale, in groups of 32, 64 or 128, or the number itself."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    e5m2_level,
    plain_steps,
    read_singles,
    unit_steps,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return e5m2_level(words, FIELD)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(blocks[:, 4:], read_singles(blocks, 0))


def unpack_plain(blocks: Tensor) -> UnpackedBlocks:
    return UnpackedBlocks(blocks)


FORMATS = {
    size: PlaneFormat(
        bits=8, group=size, unpack=unpack, level=level, steps=plain_steps, is_lifted=False, scale_type=torch.float32
    )
    for size in (32, 64, 128)
}
PLAIN = PlaneFormat(
    bits=8, group=64, unpack=unpack_plain, level=level, steps=unit_steps, is_lifted=False, scale_type=None
)
