"""TQ1_0: value = (digit - 1) * scale, in groups of 256. A digit of base 3 takes two bits here."""

import torch
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
from sporelm.quant.tq1_0 import PARTS


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return field_integer(words, magic, FIELD, 2, 1)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    digits = []
    for start, nbytes, count in PARTS:
        powers = torch.tensor([3**digit % 256 for digit in range(count)], dtype=torch.uint8, device=blocks.device)
        fractions = blocks[:, None, start : start + nbytes] * powers[:, None]
        digits.append((fractions.int() * 3 >> 8).to(torch.uint8).flatten(1))
    return UnpackedBlocks(torch.cat(digits, dim=1), read_halves(blocks, 52))


FORMAT = PlaneFormat(bits=2, group=256, unpack=unpack, level=level, steps=plain_steps)
