"""MiniMax-Text-01 and MiniMax-M1: seven layers of lightning attention to one of attention, all with experts."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, LightningAttention, NormedResidualLayer, RMSNorm, feed_forward
from sporelm.models.blocks.lightning_attention import decay_table_name, decays_of_layer
from sporelm.models.decoder import Decoder
from sporelm.models.linear_attention_config import LinearAttentionConfig


@dataclass(frozen=True, kw_only=True)
class MiniMax01Config(LinearAttentionConfig):
    """Factors of the normed rows to which the outputs of attention, of lightning attention and of experts are added."""

    attention_residual_scale: float
    lightning_residual_scale: float = 1.0
    mlp_residual_scale: float = 1.0
    full_attention_interval: int = 8


@architecture("minimax_01", MiniMax01Config)
class MiniMax01(Decoder[MiniMax01Config]):
    """A layer that adds the outputs of its blocks to normed rows (MiniMax 2025)."""

    def layer(self, config: MiniMax01Config, index: int) -> Layer:
        name = f"layers.{index}"
        has_attention = index in config.attention_layers
        scale = config.attention_residual_scale if has_attention else config.lightning_residual_scale
        return NormedResidualLayer(
            RMSNorm(f"{name}.attn_norm", config.width, config.eps),
            Attention(name, config) if has_attention else LightningAttention(config, index),
            RMSNorm(f"{name}.ffn_norm", config.width, config.eps),
            feed_forward(name, config, index),
            residual_scales=(scale, config.mlp_residual_scale),
        )

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config = self.config
        layers = [layer for layer in range(config.layers) if layer not in config.attention_layers]
        return super().tables(context) | {decay_table_name(layer): decays_of_layer(config, layer) for layer in layers}
