"""The layout of quantized weights on the device (a structure of arrays), and the kernel functions that read it.

A matrix [rows, width] is kept as planes, each with a row per row of the matrix:

codes    int32 words. A word holds `FIELDS` = 32 / bits codes. Sixteen words are a block of `FIELDS * 16` values: bits
         f * bits and up of word j hold value f * 16 + j of the block, so that a field of neighbouring words is a run of
         neighbouring values. A block is 64 bytes: rows are aligned, and a thread reads four words at once.
extra    the upper bits of codes of 3, 5 or 6 bits: for each word the bits of its codes, in the smallest integer
scales   one number or pair of numbers for each group of 16 to 256 values, as small as in files
supers   factors of the scales of a super-block, for formats that have them: one, or one for each of four threads
table    levels that codes stand for, for formats whose levels no formula gives: one for all rows

Formats with a codebook have words of 16 values: a thread has runs of eight values of a block, not of four, and their
table is of integers. `codebook.py` describes the order, and `first_column`, `thread_column` and `group_number` give it.

A value is `level * step + offset`, computed in float32: bit for bit what `QuantFormat.dequantize` returns. A format
gives two functions for kernels:

level(words, extra, table, magic, FIELD)   the levels of one field as float32, times 2 ** (FIELD * bits % 16) if
                                           `is_lifted`: the integer stays where it is in the word
steps(scales, factors, row, group, num_scales, magic, mask)
                                           (step, offset) of groups; the offset is 0.0 without `has_offsets`. `factors`
                                           are those of the groups' super-blocks, as they are stored

`magic` is MAGIC, a kernel's argument: the compiler then joins `word & mask | magic` into one instruction, which it does
not for two constants.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

MAGIC = 0x4B000000  # the bits of 2 ** 23 as float32: an integer below 2 ** 23 added to them is the number 2 ** 23 + it
BLOCK_WORDS = 16
EXTRA_TYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}  # by the bits beside a word


class UnpackedBlocks(NamedTuple):
    """Blocks taken apart on the device."""

    codes: Tensor  # uint8 [n, values]; with a codebook words [n, 16]
    scales: Tensor | None = None  # [n, groups]
    supers: Tensor | None = None  # [n, 1]; [n, 4] with `has_thread_supers`
    extra: Tensor | None = None  # [n, 16], with a codebook only


@dataclass(frozen=True)
class PlaneFormat:
    """The planes of a number format, and the kernel functions that read them."""

    bits: int  # of a code in the plane of codes
    group: int  # values that share a scale
    unpack: Callable[[Tensor], UnpackedBlocks]  # of blocks uint8 [n, nbytes]
    level: Any
    steps: Any
    scale_type: torch.dtype | None = torch.float16
    extra_bits: int = 0  # of a code; with a codebook of a word
    super_type: torch.dtype | None = None
    has_offsets: bool = False
    is_lifted: bool = True
    table: tuple[float, ...] | None = None
    codebook: Callable[[], Tensor] | None = None  # returns the table: integers, each of four or eight values
    code_type: torch.dtype = torch.int32  # of words
    scales_each: int = 1  # scales of groups that a number of their plane holds
    has_thread_supers: bool = False  # four int32 for a block: a thread's upper half is more extra bits for its words

    @property
    def fields(self) -> int:
        """Codes of a word."""
        return 32 // self.bits

    @property
    def block_values(self) -> int:
        """Values of a block of words."""
        return self.fields * BLOCK_WORDS

    @property
    def group_fields(self) -> int:
        """Fields of a block that share a scale."""
        return min(self.group // BLOCK_WORDS, self.fields)

    @property
    def group_blocks(self) -> int:
        """Blocks that share a scale."""
        return max(self.group // self.block_values, 1)

    @property
    def super_blocks(self) -> int:
        """Blocks that share a super-scale; 0 if each has four."""
        if self.has_thread_supers:
            return 0
        return 256 // self.block_values if self.super_type is not None else 1

    @property
    def extra_type(self) -> torch.dtype | None:
        if not self.extra_bits:
            return None
        return EXTRA_TYPES[self.extra_bits if self.codebook is not None else self.fields * self.extra_bits]

    @property
    def is_simple(self) -> bool:
        """Whether the format has no extra bits, offsets or table and more than one bit, so that a GEMV thread has
        registers for more rows."""
        has_table = self.table is not None or self.codebook is not None
        return not (self.extra_bits or self.has_offsets or has_table or self.bits == 1)

    def make_table(self, device: torch.device) -> Tensor | None:
        """Return the table on a device."""
        if self.codebook is not None:
            return self.codebook().to(device)
        return None if self.table is None else torch.tensor(self.table, dtype=torch.float32, device=device)

    def plane_widths(self, width: int) -> tuple[int, int, int]:
        """Return the words, scales and super-scales of a row of `width` values."""
        blocks = -(-width // self.block_values)
        values = blocks * self.block_values
        supers = blocks * 4 if self.has_thread_supers else -(-values // 256)
        return blocks * BLOCK_WORDS, -(-values // (self.group * self.scales_each)), supers

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row of `width` values in all planes."""
        words, scales, supers = self.plane_widths(width)
        planes = (
            (words, self.code_type),
            (words, self.extra_type),
            (scales, self.scale_type),
            (supers, self.super_type),
        )
        return sum(count * dtype.itemsize for count, dtype in planes if dtype is not None)

    def pack_codes(self, codes: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the words, and the extra bits, of codes uint8 [rows, width]."""
        width = codes.shape[1]
        filled = pad(codes, (0, self.plane_widths(width)[0] * self.fields - width))
        fields = filled.unflatten(1, (-1, self.fields, BLOCK_WORDS)).unbind(2)
        words = _join_fields([each & ((1 << self.bits) - 1) for each in fields], self.bits)
        if self.extra_type is None:
            return words, None
        extra = _join_fields([each >> self.bits for each in fields], self.extra_bits)
        if self.extra_type is torch.int16:  # whatever the upper half is, its lower half is kept
            return words, extra.view(torch.int16)[:, ::2].contiguous()
        return words, extra.to(self.extra_type)


def _join_fields(fields: list[Tensor], bits: int) -> Tensor:
    """Return words int32 [rows, words] of fields uint8 [rows, blocks, 16]."""
    words = fields[0].int()
    for place, field in enumerate(fields[1:], 1):
        words |= field.int() << (bits * place)
    return words.flatten(1)


# ---- fields of blocks, on the device


def read_halves(blocks: Tensor, offset: int, count: int = 1) -> Tensor:
    """Return the float16 numbers at a byte offset of every block: [n, count]."""
    return blocks[:, offset : offset + 2 * count].contiguous().view(torch.float16)


def read_singles(blocks: Tensor, offset: int) -> Tensor:
    """Return the float32 number at a byte offset of every block: [n, 1]."""
    return blocks[:, offset : offset + 4].contiguous().view(torch.float32)


def read_pairs(blocks: Tensor, offset: int) -> Tensor:
    """Return two numbers of 16 bits at a byte offset of every block as one: int32 [n, 1]."""
    return blocks[:, offset : offset + 4].contiguous().view(torch.int32)


def split_nibbles(packed: Tensor, run: int) -> Tensor:
    """Return nibbles, uint8 [n, 2 * bytes]: for each `run` bytes the low ones, then the high ones."""
    runs = packed.unflatten(1, (-1, run))
    return torch.stack([runs & 15, runs >> 4], dim=2).flatten(1)


def split_fields(packed: Tensor, bits: int) -> Tensor:
    """Return fields of `bits` bits, lowest first: uint8 [n, bytes * 8 / bits]."""
    mask = (1 << bits) - 1
    return torch.stack([packed >> shift & mask for shift in range(0, 8, bits)], dim=2).flatten(1)


def split_bit_planes(packed: Tensor) -> Tensor:
    """Return bits of uint8 [n, 32] as [n, 256]: value 32 * g + j is bit g of byte j."""
    return torch.stack([packed >> bit & 1 for bit in range(8)], dim=1).flatten(1)


def split_bit_pairs(packed: Tensor) -> Tensor:
    """Return bit pairs of uint8 [n, 64] as [n, 256]: value 128 * h + 32 * g + j is pair g of byte 32 * h + j."""
    halves = packed.unflatten(1, (2, 32))
    return torch.stack([halves >> shift & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)


# ---- where a thread's values lie


@triton.jit
def first_column(table, FIELD: tl.constexpr):
    """Return where a field's values begin in a block."""
    RUN: tl.constexpr = 4 if table is None else 4 if table.dtype.element_ty == tl.float32 else 8
    return FIELD // (RUN // 4) * (4 * RUN) + FIELD % (RUN // 4) * 4


@triton.jit
def thread_column(table, word):
    """Return where a thread's values of a field begin among the field's: the thread is given by its first word."""
    RUN: tl.constexpr = 4 if table is None else 4 if table.dtype.element_ty == tl.float32 else 8
    return word * (RUN // 4)


@triton.jit
def group_number(
    table, block, group, word, FIELDS: tl.constexpr, GROUP_FIELDS: tl.constexpr, GROUP_BLOCKS: tl.constexpr
):
    """Return which of a row's scales a thread needs for the fields of the group, counted in its block."""
    IS_SHARED: tl.constexpr = False if table is None else table.dtype.element_ty != tl.float32 and GROUP_FIELDS == 1
    if IS_SHARED:  # two fields of runs of eight have two groups of 16, and a thread has values of one
        group = group // 2 * 2 + word // 8
    return block // GROUP_BLOCKS * (FIELDS // GROUP_FIELDS) + group + word * 0


@triton.jit
def super_number(block, word, SUPER_BLOCKS: tl.constexpr):
    """Return which of a row's super-scales a thread needs."""
    if SUPER_BLOCKS == 0:
        return block * 4 + word // 4
    else:
        return block // SUPER_BLOCKS + word * 0


@triton.jit
def join_extra(extra, factors, SUPER_BLOCKS: tl.constexpr):
    """Return the extra bits of words: with `has_thread_supers` int32 whose upper half is that of the thread's."""
    if SUPER_BLOCKS == 0:
        extra = (extra.to(tl.int32) & 0xFFFF) | (tl.expand_dims(factors, len(factors.shape)) & -0x10000)
    return extra


# ---- kernel functions that several formats share


@triton.jit
def field_integer(words, magic, FIELD: tl.constexpr, BITS: tl.constexpr, BIAS: tl.constexpr):
    """Return a field's integers minus BIAS, times 2 ** (FIELD * BITS % 16): one operation for the bits, one for the
    bias. The upper half of a word is shifted down, once for all its fields."""
    LIFT: tl.constexpr = FIELD * BITS % 16
    if FIELD * BITS >= 16:
        words = words >> 16
    number = (words & (((1 << BITS) - 1) << LIFT)) | magic
    return number.to(tl.float32, bitcast=True) - (8388608.0 + (BIAS << LIFT))


@triton.jit
def wide_field_integer(
    words, extra, magic, FIELD: tl.constexpr, BITS: tl.constexpr, EXTRA_BITS: tl.constexpr, BIAS: tl.constexpr
):
    """Return what `field_integer` does for codes whose upper EXTRA_BITS bits lie beside the words."""
    LIFT: tl.constexpr = FIELD * BITS % 16
    SHIFT: tl.constexpr = LIFT + BITS - FIELD * EXTRA_BITS
    if FIELD * BITS >= 16:
        words = words >> 16
    upper = extra.to(tl.int32)
    if SHIFT >= 0:
        upper = upper << SHIFT
    else:
        upper = upper >> -SHIFT
    number = (words & (((1 << BITS) - 1) << LIFT)) | magic
    number = (upper & (((1 << EXTRA_BITS) - 1) << (LIFT + BITS))) | number
    return number.to(tl.float32, bitcast=True) - (8388608.0 + (BIAS << LIFT))


@triton.jit
def table_level(words, table, FIELD: tl.constexpr, BITS: tl.constexpr):
    """Return the table's number of each code of a field."""
    return tl.load(table + ((words >> (FIELD * BITS)) & ((1 << BITS) - 1)))


@triton.jit
def e2m1_level(words, FIELD: tl.constexpr):
    """Return twice the E2M1 number of each nibble of a field: its bits are those of a float32, with another bias."""
    if FIELD < 6:
        numbers = words << (22 - FIELD * 4)
    else:
        numbers = words >> (FIELD * 4 - 22)
    bits = (numbers & 0x1C00000) | ((words << (28 - FIELD * 4)) & -0x80000000)
    return bits.to(tl.float32, bitcast=True) * 1.7014118346046923e38  # 2 ** 127


@triton.jit
def e4m3_level(words, FIELD: tl.constexpr):
    """Return the E4M3 number of each byte of a field."""
    sign = (words << (24 - FIELD * 8)) & -0x80000000
    number = (words >> (FIELD * 8)) & 127
    bits = (number << 20) | sign
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    return tl.where(number == 127, float("nan"), value)


@triton.jit
def e5m2_level(words, FIELD: tl.constexpr):
    """Return the E5M2 number of each byte of a field: the upper byte of a float16."""
    upper = ((words >> (FIELD * 8)) << 8).to(tl.int16)
    return upper.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def small_integer(numbers, magic):
    """Return integers from 0 to 2 ** 23 - 1, in an int32, as float32: cheaper than a conversion."""
    return (numbers | magic).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def first_half(pairs):
    """Return the float16 in the lower half of an int32 as float32."""
    return pairs.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def second_half(pairs):
    """Return the float16 in the upper half of an int32 as float32."""
    return (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def plain_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps that are stored as one number of a float type."""
    return tl.load(scales + row * num_scales + group, mask=mask, other=0.0).to(tl.float32), 0.0


@triton.jit
def offset_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps and offsets that are stored as pairs of float16."""
    pairs = tl.load(scales + row * num_scales + group, mask=mask, other=0)
    return first_half(pairs), second_half(pairs)


@triton.jit
def zero_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps that are stored as float16, beside the integer that stands for 0."""
    pairs = tl.load(scales + row * num_scales + group, mask=mask, other=0)
    step = first_half(pairs)
    return step, step * -(pairs >> 16).to(tl.float32)


@triton.jit
def unit_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps of formats without scales."""
    return tl.where(mask, 1.0, 0.0) + (row + group) * 0, 0.0
