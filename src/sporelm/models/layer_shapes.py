"""The configuration of decoders with different heads and feed-forward widths in each layer."""

from dataclasses import dataclass, replace
from typing import Self

from sporelm.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class LayerShapesConfig(ModelConfig):
    """The shape of each layer; 0 for a missing block.

    layer_heads      heads of queries
    layer_kv_heads   heads of keys
    layer_ffn        width of the feed-forward block
    """

    layer_heads: tuple[int, ...] = ()
    layer_kv_heads: tuple[int, ...] = ()
    layer_ffn: tuple[int, ...] = ()

    def for_layer(self, layer: int) -> Self:
        """Return the configuration with the numbers of one layer."""
        heads, kv_heads, ffn = self.layer_heads[layer], self.layer_kv_heads[layer], self.layer_ffn[layer]
        return replace(self, heads=heads, kv_heads=kv_heads, ffn=ffn)
