"""MiMo-V2-Flash: a window with sinks in most layers, values narrower than keys, and DeepSeek V3's routing of
experts."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.blocks.attention import value_tables
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Mimo2Config(ModelConfig):
    """Layers with a window have twice the key heads.

    value_head_dim   numbers of a head of values
    value_scale      factor of values
    """

    value_head_dim: int = 128
    value_scale: float = 1.0

    def for_layer(self, layer: int) -> Self:
        """Return the configuration with the key heads of one layer."""
        return self if self.window_of(layer) is None else replace(self, kv_heads=2 * self.kv_heads)


@architecture("mimo2", Mimo2Config)
class Mimo2(Decoder[Mimo2Config]):
    """The Llama layer with a mixture (Xiaomi 2025)."""

    def layer(self, config: Mimo2Config, index: int) -> Layer:
        window = config.window_of(index)
        attention = Attention(
            f"layers.{index}",
            config.for_layer(index),
            window,
            sinks=window is not None,
            values=config.value_head_dim,
            value_scale=config.value_scale,
        )
        return pre_norm(config, index, attention)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config, tables = self.config, super().tables(context)
        if config.value_head_dim == config.head_dim:
            return tables
        return tables | value_tables(config, config.value_head_dim, (config.kv_heads, 2 * config.kv_heads))
