"""Caches of keys and values in torch: pages of floats or of Q8_0 blocks, written and read.

Pages hold PAGE positions; their shapes are those of `sporelm.ops.cache`.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from sporelm.ops.canonical_pages import BlockPages
from sporelm.quant import Q8_0
from sporelm.tensor.dtype import FLOAT8_MAX


def round_to_blocks(heads: Tensor) -> Tensor:
    """Return [..., head_dim] as Q8_0 blocks of 34 bytes, zeros after the last value: uint8 [..., blocks * 34]."""
    groups = pad(heads, (0, -heads.shape[-1] % Q8_0.values)).unflatten(-1, (-1, Q8_0.values))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    scales = largest / torch.full_like(largest, 127)
    inverse = torch.ones_like(scales) / scales
    scaled = groups * inverse.masked_fill(~inverse.isfinite(), 0)
    whole = scaled.trunc()
    away = torch.where((scaled - whole).abs() >= 0.5, scaled.sign(), 0)  # halves are rounded away from zero
    integers = (whole + away).nan_to_num(0).to(torch.int8)
    return torch.cat((scales.half().view(torch.uint8), integers.view(torch.uint8)), dim=-1).flatten(-2)


def narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float32 to a type of pages. FP8 saturates, where torch's conversion alone would give NaN."""
    return (values.clamp(-FLOAT8_MAX, FLOAT8_MAX) if dtype == torch.float8_e4m3fn else values).to(dtype)


def read_pages(cache: Tensor | BlockPages, pages: Tensor) -> Tensor:
    """Return the numbers in pages, in the cache's type; Q8_0 blocks as float32."""
    if not isinstance(cache, BlockPages):
        return cache.index_select(0, pages)
    blocks = cache.blocks.index_select(0, pages).unflatten(-1, (-1, Q8_0.nbytes))
    scales = blocks[..., :2].contiguous().view(torch.float16).float()
    values = (blocks[..., 2:].contiguous().view(torch.int8).float() * scales).flatten(-2)
    return values[..., : cache.shape[-1]]
