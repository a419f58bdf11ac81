"""IQ2_S: vectors of eight with an index of 10 bits and eight signs, in groups of 16 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.codebook import (
    half_vector,
    join_vectors,
    nibble_steps,
    pack_magnitudes,
    select_word,
    signed_levels,
)
from sporelm.backends.cuda.formats.plane_format import PlaneFormat, UnpackedBlocks, read_halves, split_fields


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    VECTOR: tl.constexpr = FIELD // 2 % 2
    word = select_word(words, FIELD // 4)
    upper = select_word(extra, FIELD // 4) >> (VECTOR * 2)
    vector = tl.load(table + (((word >> (VECTOR * 16)) & 255) | ((upper & 3) << 8)))
    return signed_levels(half_vector(vector, FIELD), word, magic, VECTOR * 16 + 8 + FIELD % 2 * 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = join_vectors(blocks[:, 2:34] | blocks[:, 34:66].int() << 8, 16)
    extra = join_vectors(split_fields(blocks[:, 66:74], 2), 2)
    return UnpackedBlocks(codes, blocks[:, 74:], read_halves(blocks, 0), extra)


def codebook() -> Tensor:
    return pack_magnitudes("IQ2_S")


FORMAT = PlaneFormat(
    bits=2,
    extra_bits=8,
    group=16,
    unpack=unpack,
    level=level,
    steps=nibble_steps,
    scale_type=torch.uint8,
    scales_each=2,
    super_type=torch.float16,
    is_lifted=False,
    codebook=codebook,
)
