"""A layer of transformers' `DynamicCache` whose keys and values lie in our pages, as programs of layers use them."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sporelm.adaptors.torch.decoder_layer import KeyValuePages


class PagedLayer(DynamicLayer):  # type: ignore[misc, unused-ignore]
    """A `DynamicLayer` of one sequence that holds pages instead of tensors, until `keys` or `values` are read.

    Then the pages become tensors, and the next step of our kernels makes pages of these again: every method of
    transformers (crop, reorder, repeat, offload) works as on tensors.
    """

    def __init__(self) -> None:
        self._pages: KeyValuePages | None = None
        super().__init__()

    @property
    def keys(self) -> Tensor | None:
        """The keys [1, kv_heads, length, head_dim]."""
        self._unpack_pages()
        return self._keys

    @keys.setter
    def keys(self, keys: Tensor | None) -> None:
        self._unpack_pages()
        self._keys = keys

    @property
    def values(self) -> Tensor | None:
        """The values [1, kv_heads, length, head_dim]."""
        self._unpack_pages()
        return self._values

    @values.setter
    def values(self, values: Tensor | None) -> None:
        self._unpack_pages()
        self._values = values

    def _unpack_pages(self) -> None:
        if self._pages is not None:
            pages, self._pages = self._pages, None
            self._keys, self._values = (each.to(self.dtype) for each in pages.read())

    def pages(self, kv_heads: int, head_dim: int, like: Tensor) -> KeyValuePages:
        """Return the pages. Convert tensors to pages first."""
        if self._pages is None:
            pages = KeyValuePages(kv_heads, head_dim)
            if self._keys is not None and self._values is not None and self._keys.numel():
                pages.write(self._keys.float(), self._values.float())
            self._keys = self._values = None
            self.device, self.dtype, self.is_initialized = like.device, like.dtype, True
            self._pages = pages
        return self._pages

    def get_seq_length(self) -> int:
        """Return the number of positions."""
        return super().get_seq_length() if self._pages is None else self._pages.length


def find_pages(cache: Any, number: int, kv_heads: int, head_dim: int, like: Tensor) -> KeyValuePages | None:
    """Return the pages of a cache's layer; None unless that is a `DynamicLayer` of one sequence on `like`'s device.

    A plain `DynamicLayer` is replaced by a `PagedLayer` in the cache.
    """
    layers = getattr(cache, "layers", None)
    if layers is None or getattr(cache, "offloading", False):
        return None
    while len(layers) <= number and getattr(cache, "layer_class_to_replicate", None) is DynamicLayer:
        layers.append(DynamicLayer())
    layer = layers[number] if number < len(layers) else None
    if type(layer) is DynamicLayer:
        paged = PagedLayer()
        if layer.is_initialized:
            paged.lazy_initialization(like, like)
            paged.keys, paged.values = layer.keys, layer.values
        layer = layers[number] = paged
    if type(layer) is not PagedLayer:
        return None
    held = layer._keys if layer._pages is None else None
    if (
        held is not None
        and held.numel()
        and (held.shape[0] != 1 or held.shape[1] != kv_heads or held.device != like.device)
    ):
        return None
    return layer.pages(kv_heads, head_dim, like)
