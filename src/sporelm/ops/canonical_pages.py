"""KV caches as the numpy references see them, and the canonical form of their pages.

Logical shape: [pages, 2, kv_heads, 64, head_dim], or [pages, 1, 1, 64, width] for latent attention. Canonical pages of
f16, bf16, f32 and fp8 are arrays of that shape; bf16 and fp8 as bits, uint16 and uint8. Those of Q8_0 are uint8 [pages,
2, kv_heads, 64, blocks * 34]: the ggml Q8_0 blocks of each position's keys, and of its values. If head_dim is not a
multiple of 32, the last block is filled with zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.quant import Q8_0
from sporelm.tensor.dtype import BF16, F16, F32, FP8, DType, ElementType

KV_TYPES: dict[str, ElementType] = {"f16": F16, "bf16": BF16, "f32": F32, "fp8": FP8, "q8_0": Q8_0}


@dataclass(frozen=True)
class BlockPages:
    """A cache of Q8_0 blocks. `blocks` holds its canonical pages, in an array of numpy or of a similar library."""

    blocks: Any  # uint8 [pages, 2, kv_heads, 64, groups * 34]
    shape: tuple[int, ...]  # logical


@dataclass(frozen=True)
class CarrierPages:
    """A cache of a type that numpy lacks, BF16 or FP8, with the bits of its numbers in an array of another type."""

    bits: NDArray[Any]
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape


def blocks_per_row(head_dim: int) -> int:
    """Return the number of blocks of one position of one head."""
    return -(-head_dim // Q8_0.values)


def canonical_shape(shape: Sequence[int], dtype: ElementType) -> tuple[int, ...]:
    """Return the shape of canonical pages, given the logical shape."""
    if isinstance(dtype, DType):
        return tuple(shape)
    return (*shape[:-1], blocks_per_row(shape[-1]) * Q8_0.nbytes)


def round_to_blocks(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round rows of heads to blocks: float32 [..., head_dim] -> uint8 [..., blocks * 34], as quant/q8_0.py does."""
    *outer, head_dim = values.shape
    groups = blocks_per_row(head_dim)
    filled = np.zeros((*outer, groups * Q8_0.values), np.float32)
    filled[..., :head_dim] = values
    with np.errstate(invalid="ignore"):  # the scale of a block with NaN is NaN
        return Q8_0.quantize(filled.reshape(-1, Q8_0.values)).reshape(*outer, groups * Q8_0.nbytes)


def read_canonical(canonical: NDArray[Any], dtype: ElementType, head_dim: int) -> NDArray[np.float32]:
    """Return the numbers of canonical pages: float32 [..., head_dim]."""
    if isinstance(dtype, DType):
        return dtype.to_f32(canonical)
    blocks = np.ascontiguousarray(canonical).reshape(-1, Q8_0.nbytes)
    return Q8_0.dequantize(blocks).reshape(*canonical.shape[:-1], -1)[..., :head_dim]


def to_canonical(values: NDArray[np.float32], dtype: ElementType) -> NDArray[Any]:
    """Return canonical pages that hold these numbers, rounded: float32 [pages, 2, kv_heads, 64, head_dim]."""
    return dtype.from_f32(values) if isinstance(dtype, DType) else round_to_blocks(values)


def read_pages(cache: Any, pages: Any) -> NDArray[np.float32]:
    """Return the numbers in pages of a cache: float32 [pages, 2, kv_heads, 64, head_dim]."""
    if isinstance(cache, BlockPages):
        return read_canonical(cache.blocks[pages], Q8_0, cache.shape[-1])
    if isinstance(cache, CarrierPages):
        return cache.dtype.to_f32(cache.bits[pages])
    return np.asarray(cache[pages].astype(np.float32))


def write_rows(cache: Any, page: Any, half: int, offset: Any, heads: NDArray[np.float32]) -> None:
    """Write rows of heads, [rows, kv_heads, head_dim], as keys (half 0) or values (half 1). Changes the cache."""
    if isinstance(cache, BlockPages):
        cache.blocks[page, half, :, offset] = round_to_blocks(heads)
    elif isinstance(cache, CarrierPages):
        cache.bits[page, half, :, offset] = cache.dtype.from_f32(heads)
    else:
        cache[page, half, :, offset] = heads
