"""How the pages of a cache lie, as attention kernels are specialised on it."""

from typing import Any

from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.runtime.tensor_storage import page_store


def kv_page_layout(cache: Any) -> tuple[KvPages, int]:
    """Return the layout of a cache of keys and values, and its number of kv heads."""
    page_store(cache)
    _, _, kv_heads, _, head_dim = cache.shape
    return KvPages(head_dim, cache.dtype.name), kv_heads


def latent_page_layout(cache: Any) -> LatentPages:
    """Return the layout of a cache of one row per position."""
    page_store(cache)
    return LatentPages(cache.shape[4], cache.dtype.name)
