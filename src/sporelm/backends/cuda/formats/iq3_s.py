"""IQ3_S: vectors of four with an index of 9 bits, and their signs, in groups of 32 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.codebook import (
    join_vectors,
    nibble_steps,
    pack_magnitudes,
    select_word,
    signed_levels,
)
from sporelm.backends.cuda.formats.plane_format import PlaneFormat, UnpackedBlocks, read_halves, split_fields


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    QUARTER: tl.constexpr = FIELD % 4
    word = select_word(words, FIELD // 4)
    beside = select_word(extra, FIELD // 4)
    upper = (beside >> (16 + QUARTER)) & 1
    vector = tl.load(table + (((word >> (QUARTER * 8)) & 255) | (upper << 8)))
    return signed_levels(vector, beside, magic, QUARTER * 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = join_vectors(blocks[:, 2:66].int()[:, ::2] | blocks[:, 2:66].int()[:, 1::2] << 8, 16)
    upper = join_vectors(split_fields(blocks[:, 66:74], 2), 2)
    extra = join_vectors(blocks[:, 74:106], 8) | upper << 16
    return UnpackedBlocks(codes, blocks[:, 106:], read_halves(blocks, 0), extra)


def codebook() -> Tensor:
    return pack_magnitudes("IQ3_S")


FORMAT = PlaneFormat(
    bits=2,
    extra_bits=32,
    group=32,
    unpack=unpack,
    level=level,
    steps=nibble_steps,
    scale_type=torch.uint8,
    scales_each=2,
    super_type=torch.float16,
    is_lifted=False,
    codebook=codebook,
)
