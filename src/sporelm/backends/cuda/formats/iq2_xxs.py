"""IQ2_XXS: vectors of eight with an index of 8 bits and eight signs, in groups of 32 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.codebook import (
    half_vector,
    join_nibbles,
    join_vectors,
    nibble_steps,
    pack_magnitudes,
    read_words,
    select_word,
    signed_levels,
    split_signs,
)
from sporelm.backends.cuda.formats.plane_format import PlaneFormat, UnpackedBlocks, read_halves


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    HALF: tl.constexpr = FIELD // 2 % 2 * 16
    word = select_word(words, FIELD // 4)
    vector = tl.load(table + ((word >> HALF) & 255))
    return signed_levels(half_vector(vector, FIELD), word, magic, HALF + 8 + FIELD % 2 * 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    indices = blocks[:, 2:].unflatten(1, (8, 8))[:, :, :4].flatten(1)
    words = read_words(blocks, 2, 16, 4)[:, 1::2]
    codes = join_vectors(indices | split_signs(words) << 8, 16)
    return UnpackedBlocks(codes, join_nibbles(words >> 28), read_halves(blocks, 0))


def codebook() -> Tensor:
    return pack_magnitudes("IQ2_XXS")


FORMAT = PlaneFormat(
    bits=2,
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
