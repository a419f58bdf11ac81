"""IQ1_M: vectors of eight with an index of 11 bits, in groups of 16 of a super-block."""

import torch
from torch import Tensor

from sporelm.backends.cuda.formats.codebook import (
    join_nibbles,
    join_vectors,
    nibble_steps,
    pack_ternary,
    read_words,
    ternary_levels,
)
from sporelm.backends.cuda.formats.plane_format import PlaneFormat, UnpackedBlocks, split_nibbles


def unpack(blocks: Tensor) -> UnpackedBlocks:
    words = read_words(blocks, 48, 4, 2)
    factors = words[:, :1] >> 12 | words[:, 1:2] >> 8 & 0xF0 | words[:, 2:3] >> 4 & 0xF00 | words[:, 3:] & 0xF000
    groups = torch.stack([words >> shift & 7 for shift in (0, 3, 6, 9)], dim=2).flatten(1)
    codes = join_vectors(blocks[:, :32], 8).to(torch.int16)
    extra = join_vectors(split_nibbles(blocks[:, 32:48], 1), 4).to(torch.uint8)
    return UnpackedBlocks(codes, join_nibbles(groups), factors.to(torch.int16).view(torch.float16), extra)


FORMAT = PlaneFormat(
    bits=2,
    code_type=torch.int16,
    extra_bits=8,
    group=16,
    unpack=unpack,
    level=ternary_levels,
    steps=nibble_steps,
    scale_type=torch.uint8,
    scales_each=2,
    super_type=torch.float16,
    is_lifted=False,
    codebook=pack_ternary,
)
