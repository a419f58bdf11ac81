"""IQ2_XS: vectors of eight with an index of 9 bits and a sign code of 7, in groups of 16 of a super-block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.codebook import (
    half_vector,
    join_vectors,
    nibble_steps,
    pack_magnitudes,
    read_words,
    select_word,
    signed_levels,
)
from sporelm.backends.cuda.formats.plane_format import PlaneFormat, UnpackedBlocks, read_halves


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    HALF: tl.constexpr = FIELD // 2 % 2 * 16
    word = select_word(words, FIELD // 4) >> HALF
    vector = tl.load(table + (word & 511))
    pairs = word ^ (word >> 1) ^ (word >> 2)
    parity = (pairs >> 9) ^ (pairs >> 12) ^ (word >> 15)  # the eighth sign makes the number of negative values even
    signs = ((word >> 9) & 127) | (parity << 7)
    return signed_levels(half_vector(vector, FIELD), signs, magic, FIELD % 2 * 4)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = join_vectors(read_words(blocks, 2, 32, 2), 16)
    return UnpackedBlocks(codes, blocks[:, 66:], read_halves(blocks, 0))


def codebook() -> Tensor:
    return pack_magnitudes("IQ2_XS")


FORMAT = PlaneFormat(
    bits=2,
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
