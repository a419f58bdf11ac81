"""IQ3_XXS: vectors of four with an index of 8 bits, and their signs, in groups of 32 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.codebook import (
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
    word = select_word(words, FIELD // 4)
    vector = tl.load(table + ((word >> (FIELD % 4 * 8)) & 255))
    return signed_levels(vector, select_word(extra, FIELD // 4), magic, FIELD % 4 * 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = join_vectors(blocks[:, 2:66].int()[:, ::2] | blocks[:, 2:66].int()[:, 1::2] << 8, 16)
    words = read_words(blocks, 66, 8, 4)
    signs = join_vectors(split_signs(words), 8).to(torch.int16)
    return UnpackedBlocks(codes, join_nibbles(words >> 28), read_halves(blocks, 0), signs)


def codebook() -> Tensor:
    return pack_magnitudes("IQ3_XXS")


FORMAT = PlaneFormat(
    bits=2,
    extra_bits=16,
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
