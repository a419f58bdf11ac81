"""Conversion of the CPU's pages to canonical form (ops/canonical_pages.py), and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.cpu.kernels.kv_pages import BLOCK_VALUES, KvPages
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.runtime.tensor_storage import page_store
from sporelm.ops.canonical_pages import canonical_shape
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import DType, ElementType
from sporelm.tensor.tensor import Tensor

SCALE_BYTES = 2


def page_bytes(shape: tuple[int, ...], dtype: ElementType) -> int:
    """Return the bytes of a page of this logical shape."""
    halves, kv_heads, _, width = shape
    return LatentPages(width, dtype.name).page_bytes if halves == 1 else KvPages(width, dtype.name).page_bytes(kv_heads)


def export_pages(cache: Tensor, pages: list[int]) -> NDArray[Any]:
    """Return a copy of the pages in canonical form."""
    if cache.shape[1] == 1:
        return _latent(cache)[pages]
    if not isinstance(cache.dtype, DType):
        return _to_blocks(_halves(cache)[pages], _layout(cache))
    keys, values = _key_value_views(cache)
    return np.stack([keys[pages].swapaxes(2, 3), values[pages]], axis=1)


def import_pages(cache: Tensor, pages: list[int], canonical: NDArray[Any]) -> None:
    """Write pages given in canonical form. Changes the cache."""
    if cache.shape[1] == 1:
        _latent(cache)[pages] = canonical
        return
    if not isinstance(cache.dtype, DType):
        _halves(cache)[pages] = _from_blocks(canonical, _layout(cache))
        return
    keys, values = _key_value_views(cache)
    keys[pages], values[pages] = canonical[:, 0].swapaxes(2, 3), canonical[:, 1]


def _latent(cache: Tensor) -> NDArray[Any]:
    """Return a view of latent rows, which are stored in canonical form."""
    store, shape = page_store(cache), canonical_shape(cache.shape, cache.dtype)
    nbytes = page_bytes(cache.shape[1:], cache.dtype)
    whole = np.lib.stride_tricks.as_strided(store.array, (shape[0], nbytes), (store.stride, 1))
    return whole.view(cache.dtype.numpy if isinstance(cache.dtype, DType) else np.uint8).reshape(shape)


def _layout(cache: Tensor) -> KvPages:
    return KvPages(cache.shape[4], cache.dtype.name)


def _halves(cache: Tensor) -> NDArray[np.uint8]:
    """Return a view of all bytes, [pages, kv_heads, 2, bytes of keys or values]."""
    layout, store = _layout(cache), page_store(cache)
    shape = (cache.shape[0], cache.shape[2], 2, layout.half_bytes)
    strides = (store.stride, 2 * layout.half_bytes, layout.half_bytes, 1)
    return np.lib.stride_tricks.as_strided(store.array, shape, strides)


def _key_value_views(cache: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return views [pages, kv_heads, ...] of the keys [.., head_dim, 64] and the values [.., 64, head_dim]."""
    count, _, kv_heads, _, head_dim = cache.shape
    layout, dtype = _layout(cache), cache.dtype
    assert isinstance(dtype, DType)
    whole = _halves(cache).view(dtype.numpy)
    keys = whole[:, :, 0].reshape(count, kv_heads, layout.padded, PAGE)
    values = whole[:, :, 1].reshape(count, kv_heads, PAGE, layout.padded)
    return keys[:, :, :head_dim], values[..., :head_dim]


def _to_blocks(halves: NDArray[np.uint8], layout: KvPages) -> NDArray[np.uint8]:
    """Convert bytes [pages, kv_heads, 2, ...] to blocks [pages, 2, kv_heads, 64, groups * 34]."""
    count, kv_heads = halves.shape[:2]
    scales, numbers = halves[..., : layout.scales_bytes], halves[..., layout.scales_bytes :]
    blocks = np.empty((count, 2, kv_heads, PAGE, layout.groups, SCALE_BYTES + BLOCK_VALUES), np.uint8)
    by_group = scales.reshape(count, kv_heads, 2, layout.groups, PAGE, SCALE_BYTES)
    blocks[..., :SCALE_BYTES] = by_group.transpose(0, 2, 1, 4, 3, 5)
    keys = numbers[:, :, 0].reshape(count, kv_heads, layout.groups, BLOCK_VALUES, PAGE)
    blocks[:, 0, ..., SCALE_BYTES:] = keys.transpose(0, 1, 4, 2, 3)
    blocks[:, 1, ..., SCALE_BYTES:] = numbers[:, :, 1].reshape(count, kv_heads, PAGE, layout.groups, BLOCK_VALUES)
    return blocks.reshape(count, 2, kv_heads, PAGE, layout.groups * (SCALE_BYTES + BLOCK_VALUES))


def _from_blocks(canonical: NDArray[np.uint8], layout: KvPages) -> NDArray[np.uint8]:
    """Convert blocks to bytes, the inverse of `_to_blocks`."""
    count, _, kv_heads = canonical.shape[:3]
    blocks = canonical.reshape(count, 2, kv_heads, PAGE, layout.groups, SCALE_BYTES + BLOCK_VALUES)
    halves = np.empty((count, kv_heads, 2, layout.half_bytes), np.uint8)
    scales, numbers = blocks[..., :SCALE_BYTES], blocks[..., SCALE_BYTES:]
    by_group = scales.transpose(0, 2, 1, 4, 3, 5)
    halves[..., : layout.scales_bytes] = by_group.reshape(count, kv_heads, 2, layout.scales_bytes)
    for half, found in enumerate((numbers[:, 0].transpose(0, 1, 3, 4, 2), numbers[:, 1])):
        halves[:, :, half, layout.scales_bytes :] = found.reshape(count, kv_heads, layout.padded * PAGE)
    return halves
