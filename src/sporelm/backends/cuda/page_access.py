"""Caches of keys and values in kernels: tiles read from pages, and rows written to them.

A row is one position of one head's keys or values; rows are numbered in memory order, PAGE in a page's tile. Kernels
take a cache as `CacheArrays`. FP8 is read and written as its bits, which also serves cards without its conversions.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.numbers import IS_INTERPRETED, narrow
from sporelm.backends.torch.torch_pages import FP8, Cache
from sporelm.ops.canonical_pages import BlockPages
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import Q8_0
from sporelm.tensor.dtype import FLOAT8_MAX

FLOAT_PAGES, FP8_PAGES, BLOCK_PAGES = 0, 1, 2  # kinds of pages

PAGE_ROWS: tl.constexpr = tl.constexpr(PAGE)
_INTERPRETED: tl.constexpr = tl.constexpr(IS_INTERPRETED)
_BLOCKS_KIND: tl.constexpr = tl.constexpr(BLOCK_PAGES)
_FP8: tl.constexpr = tl.constexpr(FP8_PAGES)
_BLOCK: tl.constexpr = tl.constexpr(Q8_0.values)  # numbers
_BLOCK_BYTES: tl.constexpr = tl.constexpr(Q8_0.nbytes)
_FP8_MAX: tl.constexpr = tl.constexpr(FLOAT8_MAX)


class CacheArrays(NamedTuple):
    """A cache as kernels take it. `scales` shows the same memory as float16, for the scales of Q8_0 blocks."""

    values: Tensor  # floats, bits of FP8, or bytes of blocks
    scales: Tensor
    kind: int


def cache_arrays(cache: Cache) -> CacheArrays:
    """Return a cache as kernels take it."""
    if isinstance(cache, BlockPages):
        return CacheArrays(cache.blocks, cache.blocks.view(torch.float16), BLOCK_PAGES)
    if cache.dtype is FP8:
        bits = cache.view(torch.uint8)
        return CacheArrays(bits, bits, FP8_PAGES)
    return CacheArrays(cache, cache, FLOAT_PAGES)


@triton.jit
def widen_fp8(bits):
    """Return the numbers of E4M3 bits as float16, which holds all of them."""
    if _INTERPRETED:
        return _widen_fp8_bits(bits)
    elif tl.target_info.cuda_capability_geq(8, 9):
        return bits.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        return _widen_fp8_bits(bits)


@triton.jit
def _widen_fp8_bits(bits):
    wide = bits.to(tl.uint16)
    magnitude = wide & 0x7F
    beyond = ((magnitude + 1) & 0x80) << 7  # makes a NaN of all bits set
    half = ((wide & 0x80) << 8) | ((magnitude << 7) + beyond)
    return half.to(tl.float16, bitcast=True) * tl.full(bits.shape, 256.0, tl.float16)  # their exponents' biases differ


@triton.jit
def round_to_fp8(values):
    """Return the E4M3 bits of float32 numbers, rounded to nearest, and beyond the greatest number to that one."""
    bits = values.to(tl.uint32, bitcast=True)
    sign, is_nan = (bits >> 24) & 0x80, (bits & 0x7FFFFFFF) > 0x7F800000
    magnitude = tl.minimum(tl.abs(tl.where(is_nan, 0.0, values)), _FP8_MAX)
    # Below 2**-6 a float addition rounds to a multiple of 2**-9, the step of subnormal numbers.
    tiny = (magnitude + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    wide = magnitude.to(tl.uint32, bitcast=True)
    normal = ((wide + 0x7FFFF + ((wide >> 20) & 1)) >> 20) - 960
    code = tl.where(is_nan, 0x7F, tl.where(magnitude < 0.015625, tiny, normal))
    return (sign | code).to(tl.uint8)


@triton.jit
def load_tile(
    values, scales, row, is_inside, DTYPE: tl.constexpr,
    KIND: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return the columns FIRST : FIRST + COUNT of ROWS rows of a cache, from an int64 `row` on: [ROWS, COLUMNS].

    Rows have WIDTH numbers. Where `is_inside` [ROWS] is false, and in columns from COUNT on, the result is 0.
    """
    rows, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if KIND != _BLOCKS_KIND:
        pointers = values + (row * WIDTH + FIRST) + rows * WIDTH + column
        mask = is_inside[:, None] if COUNT == COLUMNS else is_inside[:, None] & (column < COUNT)
        if KIND == _FP8:
            return _convert(widen_fp8(tl.load(pointers, mask=mask, other=0)), DTYPE)
        else:
            return _convert(tl.load(pointers, mask=mask, other=0.0), DTYPE)
    else:
        BLOCKS: tl.constexpr = (WIDTH + _BLOCK - 1) // _BLOCK
        if FIRST // _BLOCK * _BLOCK == FIRST and COLUMNS >= _BLOCK:  # whole blocks: one scale for each
            GROUPS: tl.constexpr = COLUMNS // _BLOCK
            group = tl.arange(0, GROUPS)[None, :]
            block = (row * BLOCKS + FIRST // _BLOCK) + tl.arange(0, ROWS)[:, None] * BLOCKS + group
            is_there = is_inside[:, None] & (group < (COUNT + _BLOCK - 1) // _BLOCK)
            factors = tl.load(scales + block * (_BLOCK_BYTES // 2), mask=is_there, other=0.0).to(tl.float32)
            place = tl.arange(0, _BLOCK)[None, None, :]
            codes = tl.load(values + block[:, :, None] * _BLOCK_BYTES + 2 + place, mask=is_there[:, :, None], other=0)
            numbers = codes.to(tl.int8, bitcast=True).to(tl.float32) * factors[:, :, None]
            return narrow(tl.reshape(numbers, (ROWS, COLUMNS)), DTYPE)
        else:
            at = FIRST + column
            block = row * BLOCKS + rows * BLOCKS + at // _BLOCK
            mask = is_inside[:, None] & (column < COUNT)
            factors = tl.load(scales + block * (_BLOCK_BYTES // 2), mask=mask, other=0.0).to(tl.float32)
            codes = tl.load(values + block * _BLOCK_BYTES + 2 + at % _BLOCK, mask=mask, other=0)
            return narrow(codes.to(tl.int8, bitcast=True).to(tl.float32) * factors, DTYPE)


@triton.jit
def _convert(numbers, DTYPE: tl.constexpr):
    if numbers.dtype == DTYPE:
        return numbers
    else:
        return narrow(numbers.to(tl.float32), DTYPE)


@triton.jit
def store_rows(
    values, scales, row, numbers, is_inside,
    KIND: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Round float32 rows [rows, COLUMNS] and write them to the columns FIRST : FIRST + COUNT of the rows of a cache
    numbered by int64 `row` [rows, 1].

    Rows have WIDTH numbers. Those given from column COUNT on must be 0. Blocks are written whole: FIRST is at the
    beginning of one. Where `is_inside` [rows, 1] is false, nothing is written.
    """
    column = tl.arange(0, COLUMNS)[None, :]
    if KIND != _BLOCKS_KIND:
        pointers, mask = values + row * WIDTH + FIRST + column, is_inside & (column < COUNT)
        if KIND == _FP8:
            tl.store(pointers, round_to_fp8(numbers), mask=mask)
        else:
            tl.store(pointers, narrow(numbers, values.dtype.element_ty), mask=mask)
    else:
        BLOCKS: tl.constexpr = (WIDTH + _BLOCK - 1) // _BLOCK
        ROWS: tl.constexpr = numbers.shape[0]
        GROUPS: tl.constexpr = COLUMNS // _BLOCK
        groups = tl.reshape(numbers, (ROWS, GROUPS, _BLOCK))
        largest = tl.max(tl.abs(groups), 2)
        # The greatest number is 0 only if all are: a NaN among them must reach the scale.
        is_nan = tl.max((groups != groups).to(tl.int32), 2) != 0
        factors = tl.where(is_nan, float("nan"), tl.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32)))
        is_small = factors < 2.0**-127  # its inverse is infinite
        inverse = tl.div_rn(tl.full(largest.shape, 1.0, tl.float32), tl.where(is_small, 1.0, factors))
        scaled = groups * tl.where(is_small, 0.0, inverse)[:, :, None]
        size = tl.abs(scaled)
        whole = tl.floor(size)
        whole = tl.where(size - whole >= 0.5, whole + 1, whole)  # halves are rounded away from zero
        signed = tl.where(scaled < 0, -whole, whole)
        codes = tl.where(scaled == scaled, signed, 0.0).to(tl.int8)
        group = tl.arange(0, GROUPS)[None, :]
        block, is_there = row * BLOCKS + FIRST // _BLOCK + group, is_inside & (group < (COUNT + _BLOCK - 1) // _BLOCK)
        tl.store(scales + block * (_BLOCK_BYTES // 2), factors.to(tl.float16), mask=is_there)
        pointers = values + block[:, :, None] * _BLOCK_BYTES + 2 + tl.arange(0, _BLOCK)[None, None, :]
        tl.store(pointers, codes.to(tl.uint8, bitcast=True), mask=is_there[:, :, None])
