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
from sporelm.backends.cuda.formats.plane_format import (
    PlaneFormat,
    UnpackedBlocks,
    first_half,
    read_halves,
    split_fields,
)


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    word, beside = select_word(words, FIELD // 4), select_word(extra, FIELD // 4)
    upper = (beside >> (16 + FIELD)) & 1
    vector = tl.load(table + (((word >> (FIELD % 4 * 8)) & 255) | (upper << 8)))
    return signed_levels(vector, beside, magic, FIELD % 4 * 4)


@triton.jit
def steps(scales, factors, row, group, num_scales, magic, mask):
    return nibble_steps(scales, first_half(factors), row, group, num_scales, magic, mask)


def unpack(blocks: Tensor) -> UnpackedBlocks:
    codes = join_vectors(blocks[:, 2:66].int()[:, ::2] | blocks[:, 2:66].int()[:, 1::2] << 8, 16)
    signs = join_vectors(blocks[:, 74:106], 8).to(torch.int16)
    upper = join_vectors(split_fields(blocks[:, 66:74], 2), 2).unflatten(1, (4, 4))  # of four threads' words
    upper = (upper << torch.arange(16, 32, 4, device=blocks.device)).sum(2).int()
    factors = read_halves(blocks, 0).view(torch.int16).int() & 0xFFFF
    return UnpackedBlocks(codes, blocks[:, 106:], upper | factors, signs)


def codebook() -> Tensor:
    return pack_magnitudes("IQ3_S")


FORMAT = PlaneFormat(
    bits=2,
    extra_bits=16,
    group=32,
    unpack=unpack,
    level=level,
    steps=steps,
    scale_type=torch.uint8,
    scales_each=2,
    super_type=torch.int32,
    has_thread_supers=True,
    is_lifted=False,
    codebook=codebook,
)
