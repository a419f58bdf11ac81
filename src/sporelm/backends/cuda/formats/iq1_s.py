"""IQ1_S: vectors of eight with an index of 11 bits, in groups of 32 of a super-block."""

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
from sporelm.backends.cuda.formats.plane_format import PlaneFormat, UnpackedBlocks, read_halves


def unpack(blocks: Tensor) -> UnpackedBlocks:
    words = read_words(blocks, 34, 8, 2)
    shifts = words >> 15 << 3
    upper = torch.stack([words >> shift & 7 | shifts for shift in (0, 3, 6, 9)], dim=2).flatten(1)
    codes = join_vectors(blocks[:, 2:34], 8).to(torch.int16)
    extra = join_vectors(upper, 4).to(torch.uint8)
    return UnpackedBlocks(codes, join_nibbles(words >> 12 & 7), read_halves(blocks, 0), extra)


FORMAT = PlaneFormat(
    bits=2,
    code_type=torch.int16,
    extra_bits=8,
    group=32,
    unpack=unpack,
    level=ternary_levels,
    steps=nibble_steps,
    scale_type=torch.uint8,
    scales_each=2,
    super_type=torch.float16,
    is_lifted=False,
    codebook=pack_ternary,
)
