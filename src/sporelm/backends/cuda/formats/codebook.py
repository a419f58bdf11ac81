"""Formats with a codebook, whose indices stand for eight values (a vector) or for four.

Thread t of the four of a block has the vectors of values 32 * r + 8 * t and up, for r from 0 to 7. Word j of its four
holds the vectors of r = 2 * j and 2 * j + 1, in its lower and in its upper half. Fields 2 * r and 2 * r + 1 are the two
halves of a vector.

Tables of the IQ2 and IQ3 formats have a byte for each magnitude: bits 18 to 24 of a float32 whose upper bits are those
of 2.0. Levels are multiples of the least magnitude, which is 2.0: a step is then factor * (nibble + 0.5) in all these
formats. Products of such numbers are exact in float32.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import small_integer
from sporelm.quant.grids import load_grid

# ---- packing


def join_vectors(vectors: Tensor, bits: int) -> Tensor:
    """Return words int32 [n, 16] of the lower `bits` bits of vectors [n, 32], two in each."""
    lower, upper = vectors.int().view(-1, 4, 2, 4).permute(2, 0, 3, 1).flatten(2).unbind(0)
    mask = (1 << bits) - 1
    return lower & mask | (upper & mask) << bits


def join_nibbles(nibbles: Tensor) -> Tensor:
    """Return nibbles [n, groups] as bytes, the first one in the lower half."""
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).to(torch.uint8)


def read_words(blocks: Tensor, offset: int, count: int, nbytes: int) -> Tensor:
    """Return unsigned words at a byte offset of every block: int64 [n, count]."""
    words = blocks[:, offset : offset + count * nbytes].long().unflatten(1, (count, nbytes))
    return (words << torch.arange(0, 8 * nbytes, 8, device=blocks.device)).sum(2)


def split_signs(words: Tensor) -> Tensor:
    """Return signs of vectors, int64 [n, 32], of words [n, 8] with four codes of seven bits each."""
    codes = torch.stack([words >> shift & 127 for shift in (0, 7, 14, 21)], dim=2).flatten(1)
    folded = codes ^ codes >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return codes | (folded & 1) << 7


def pack_magnitudes(name: str) -> Tensor:
    """Return a codebook as a table of int64 or int32, a byte for each magnitude."""
    grid = load_grid(name)
    levels = grid * np.float32(2 / grid.min())
    codes = (levels.view(np.uint32) - 0x40000000 >> 18).astype(np.uint8)
    return torch.from_numpy(codes.view(f"<i{grid.shape[1]}")[:, 0].copy())


def pack_ternary() -> Tensor:
    """Return the codebook of the IQ1 formats as a table of int16: two bits for each number plus 1."""
    digits = load_grid("IQ1").astype(np.int32) + 1
    return torch.from_numpy((digits << np.arange(0, 16, 2)).sum(axis=1).astype(np.int16))


# ---- kernel functions


@triton.jit
def list_lanes(like):
    """Return the numbers of a thread's words, with the dimensions of a tensor of words."""
    lane = tl.arange(0, 4)[None, None, None, :]
    if len(like.shape) == 5:
        lane = tl.expand_dims(lane, 0)
    return lane


@triton.jit
def select_word(words, WORD: tl.constexpr):
    """Return one of a thread's words as int32."""
    return tl.sum(tl.where(list_lanes(words) == WORD, words.to(tl.int32), 0), len(words.shape) - 1)


@triton.jit
def shift_lanes(numbers, FIRST: tl.constexpr, BITS: tl.constexpr):
    """Return a thread's numbers for its four values: shifted left by FIRST - BITS * i, or right if that is negative."""
    wide = tl.expand_dims(numbers, len(numbers.shape))
    left = FIRST - BITS * list_lanes(wide)
    if FIRST >= 3 * BITS:
        return wide << left
    elif FIRST <= 0:
        return wide >> -left
    else:
        return tl.where(left >= 0, wide << tl.maximum(left, 0), wide >> tl.maximum(-left, 0))


@triton.jit
def signed_levels(magnitudes, signs, magic, SIGN: tl.constexpr):
    """Return the levels of four magnitudes in an int32, with signs in bits SIGN to SIGN + 3 of another."""
    two = magic - 0xB000000  # 0x40000000, unknown to the compiler, as is `magic`
    numbers = (shift_lanes(magnitudes, 18, 8) & 0x1FC0000) | two
    bits = (shift_lanes(signs, 31 - SIGN, 1) & -0x80000000) ^ numbers
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def half_vector(vector, FIELD: tl.constexpr):
    """Return a field's four magnitudes of a vector's eight."""
    return (vector >> (FIELD % 2 * 32)).to(tl.int32)


@triton.jit
def ternary_levels(words, extra, table, magic, FIELD: tl.constexpr):
    """Return twice the numbers of the IQ1 formats: their vectors have three upper bits of the index and a bit that
    selects -1/8 instead of 1/8, which is added to all."""
    VECTOR: tl.constexpr = FIELD // 2 % 2
    upper = select_word(extra, FIELD // 4) >> (VECTOR * 4)
    index = (select_word(words, FIELD // 4) >> (VECTOR * 8)) & 255 | ((upper & 7) << 8)
    vector = tl.load(table + index).to(tl.int32)
    eight = magic - 0xA000000  # 0x41000000, unknown to the compiler
    bits = (shift_lanes(vector, 21 - FIELD % 2 * 8, 2) & 0x600000) | eight  # 8.0 + 2 * digit
    shift = tl.where((upper & 8) == 0, 9.75, 10.25)
    return bits.to(tl.float32, bitcast=True) - tl.expand_dims(shift, len(bits.shape) - 1)


@triton.jit
def nibble_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps of groups: factor * (nibble + 0.5). A byte holds the nibbles of two groups."""
    pair = tl.load(scales + row * num_scales + group // 2, mask=mask, other=0).to(tl.int32)
    nibble = (pair >> (group % 2 * 4).to(tl.int32)) & 15
    return factors.to(tl.float32) * (small_integer(nibble, magic) + 0.5), 0.0
