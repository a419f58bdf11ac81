"""What a cache of keys and values is to the numpy meanings, and the canonical form of its pages.

Logical shape: [pages, 2, kv_heads, 64, head_dim]; of latent attention [pages, 1, 1, 64, width]. Canonical pages of f16
and f32 are arrays of that shape; those of Q8_0 are uint8 [pages, 2, kv_heads, 64, groups * 34]: of a position's keys,
and of its values, the blocks of ggml's Q8_0 one after the other, each of 32 numbers; where head_dim is no multiple of
32, zeros fill the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.quant import Q8_0
from sporelm.tensor.dtype import F16, F32, DType, ElementType

KV_TYPES: dict[str, ElementType] = {"f16": F16, "f32": F32, "q8_0": Q8_0}


@dataclass(frozen=True)
class BlockPages:
    """A cache of Q8_0 blocks: `blocks` are its canonical pages, an array of numpy or of a library much like it."""

    blocks: Any  # uint8 [pages, 2, kv_heads, 64, groups * 34]
    shape: tuple[int, ...]  # logical


def groups_of(head_dim: int) -> int:
    """Blocks of one position of one head."""
    return -(-head_dim // Q8_0.values)


def canonical_shape(shape: Sequence[int], dtype: ElementType) -> tuple[int, ...]:
    """The shape of canonical pages, of the logical one."""
    if isinstance(dtype, DType):
        return tuple(shape)
    return (*shape[:-1], groups_of(shape[-1]) * Q8_0.nbytes)


def rounded(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks of values of heads: float32 [..., head_dim] -> uint8 [..., groups * 34], rounded as quant/q8_0.py does."""
    *outer, head_dim = values.shape
    groups = groups_of(head_dim)
    filled = np.zeros((*outer, groups * Q8_0.values), np.float32)
    filled[..., :head_dim] = values
    with np.errstate(invalid="ignore"):  # a block with NaN has that for its scale
        return Q8_0.quantize(filled.reshape(-1, Q8_0.values)).reshape(*outer, groups * Q8_0.nbytes)


def values_of(canonical: NDArray[Any], dtype: ElementType, head_dim: int) -> NDArray[np.float32]:
    """The numbers that canonical pages stand for: float32 [..., head_dim]."""
    if isinstance(dtype, DType):
        return canonical.astype(np.float32)
    blocks = np.ascontiguousarray(canonical).reshape(-1, Q8_0.nbytes)
    return Q8_0.dequantize(blocks).reshape(*canonical.shape[:-1], -1)[..., :head_dim]


def canonical_of(values: NDArray[np.float32], dtype: ElementType) -> NDArray[Any]:
    """Canonical pages that hold these numbers, rounded: float32 [pages, 2, kv_heads, 64, head_dim]."""
    return values.astype(dtype.numpy) if isinstance(dtype, DType) else rounded(values)


def held_in(cache: Any, pages: Any) -> NDArray[np.float32]:
    """What pages of a cache hold: float32 [pages, 2, kv_heads, 64, head_dim]."""
    if isinstance(cache, BlockPages):
        return values_of(cache.blocks[pages], Q8_0, cache.shape[-1])
    return np.asarray(cache[pages].astype(np.float32))


def put(cache: Any, page: Any, half: int, offset: Any, heads: NDArray[np.float32]) -> None:
    """Write rows of heads, [rows, kv_heads, head_dim], as keys (half 0) or values (1) of places. Changes the cache."""
    if isinstance(cache, BlockPages):
        cache.blocks[page, half, :, offset] = rounded(heads)
    else:
        cache[page, half, :, offset] = heads
