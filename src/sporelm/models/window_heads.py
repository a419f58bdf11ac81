"""The configuration of decoders with other query heads and rotary positions in layers with a window."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from sporelm.models.blocks.head_gated_attention import head_tables
from sporelm.models.config import ModelConfig
from sporelm.models.position_tables import position_tables


@dataclass(frozen=True, kw_only=True)
class WindowHeadsConfig(ModelConfig):
    """The fields of layers with a window; the other layers use those of all models.

    local_heads    query heads
    local_rotary   rotated channels of a head; None: no layer has a window
    """

    local_heads: int = 0
    local_rotary: int | None = None

    def for_layer(self, layer: int) -> Self:
        """Return the configuration with the heads of one layer."""
        return self if self.window_of(layer) is None else replace(self, heads=self.local_heads)

    @property
    def layer_heads(self) -> list[int]:
        """The number of query heads of each layer."""
        return [self.for_layer(layer).heads for layer in range(self.layers)]

    def head_gate_tables(self, context: int) -> dict[str, np.ndarray]:
        """Return `Decoder.tables` of a model with gated heads."""
        positions = position_tables(self, context, self.local_rotary or 0)
        return positions | head_tables(self.head_dim, {self.heads, self.local_heads})
