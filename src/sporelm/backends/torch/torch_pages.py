"""Caches of keys and values in torch: pages of floats or of Q8_0 blocks, written and read.

Pages hold PAGE positions; their shapes are those of `sporelm.ops.canonical_pages`. A row is one position of one head's
keys or values; a tile is the PAGE rows of one page. Both are numbered in memory order.
"""

from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from sporelm.backends.torch.step_context import STEP
from sporelm.ops.canonical_pages import BlockPages
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import Q8_0
from sporelm.tensor.dtype import FLOAT8_MAX

FP8 = torch.float8_e4m3fn

Cache: TypeAlias = Tensor | BlockPages


def round_to_blocks(heads: Tensor) -> Tensor:
    """Return [..., head_dim] as Q8_0 blocks of 34 bytes, zeros after the last value: uint8 [..., blocks * 34]."""
    groups = pad(heads.float(), (0, -heads.shape[-1] % Q8_0.values)).unflatten(-1, (-1, Q8_0.values))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    scales = largest / torch.full_like(largest, 127)
    inverse = torch.ones_like(scales) / scales
    scaled = groups * inverse.masked_fill(~inverse.isfinite(), 0)
    whole = scaled.trunc()
    away = torch.where((scaled - whole).abs() >= 0.5, scaled.sign(), 0)  # halves are rounded away from zero
    integers = (whole + away).nan_to_num(0).to(torch.int8)
    return torch.cat((scales.half().view(torch.uint8), integers.view(torch.uint8)), dim=-1).flatten(-2)


def dequantize_blocks(blocks: Tensor, head_dim: int) -> Tensor:
    """Return the numbers of Q8_0 blocks, uint8 [..., blocks * 34] -> float32 [..., head_dim]."""
    blocks = blocks.unflatten(-1, (-1, Q8_0.nbytes))
    scales = blocks[..., :2].contiguous().view(torch.float16).float()
    values = (blocks[..., 2:].contiguous().view(torch.int8).float() * scales).flatten(-2)
    return values[..., :head_dim]


def cache_bits(cache: Cache) -> Tensor:
    """Return what a cache holds in a type that every torch device can index: FP8 as its bits, Q8_0 as its blocks."""
    if isinstance(cache, BlockPages):
        return cache.blocks
    return cache.view(torch.uint8) if cache.dtype is FP8 else cache


def _to_bits(cache: Cache, heads: Tensor) -> Tensor:
    """Round numbers [..., head_dim] to the cache's type, as `cache_bits` shows it."""
    if isinstance(cache, BlockPages):
        return round_to_blocks(heads)
    if cache.dtype is FP8:  # torch's conversion gives NaN beyond the greatest number
        return heads.float().clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FP8).view(torch.uint8)
    return heads.to(cache.dtype)


def _from_bits(cache: Cache, bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers [..., head_dim] of what `cache_bits` shows, in `dtype`."""
    if isinstance(cache, BlockPages):
        return dequantize_blocks(bits, cache.shape[-1]).to(dtype)
    return (bits.view(FP8) if cache.dtype is FP8 else bits).to(dtype)


def write_rows(cache: Cache, slots: Tensor, heads: Tensor) -> None:
    """Write all that a cache keeps of tokens, [tokens, heads, head_dim], to slots int32 [tokens].

    The heads are those of the keys, and then those of the values, if the cache has both.
    """
    bits = cache_bits(cache)
    num_heads = heads.shape[1]

    def number_rows() -> Tensor:
        slot, head = slots.long().unsqueeze(1), torch.arange(num_heads, device=slots.device)
        return ((slot // PAGE * num_heads + head) * PAGE + slot % PAGE).flatten()

    rows = STEP.share("rows", (slots,), (num_heads,), number_rows)
    bits.view(-1, bits.shape[-1]).index_copy_(0, rows, _to_bits(cache, heads).flatten(0, 1))


def read_tiles(cache: Cache, tiles: Tensor, dtype: torch.dtype) -> Tensor:
    """Return tiles by their numbers: [tiles, PAGE, head_dim] in `dtype`."""
    bits = cache_bits(cache)
    found = bits.view(-1, PAGE * bits.shape[-1]).index_select(0, tiles).view(-1, PAGE, bits.shape[-1])
    return _from_bits(cache, found, dtype)


def read_rows(cache: Cache, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows by their numbers: [..., head_dim] in `dtype`."""
    bits = cache_bits(cache)
    found = bits.view(-1, bits.shape[-1]).index_select(0, rows.flatten()).unflatten(0, rows.shape)
    return _from_bits(cache, found, dtype)


def read_pages(cache: Cache, pages: Tensor) -> Tensor:
    """Return the numbers in pages: float32 [pages, 2, kv_heads, PAGE, head_dim]."""
    return _from_bits(cache, cache_bits(cache).index_select(0, pages), torch.float32)
