"""Qwen3-Next, Qwen3.5: gated delta nets in place of most layers of attention, which has a gate."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, DeltaNet, DeltaNetShape, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.linear_attention_config import LinearAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(LinearAttentionConfig):
    """delta_net: the shape of the gated delta nets."""

    delta_net: DeltaNetShape


@architecture("qwen3next", Qwen3NextConfig)
class Qwen3Next(Decoder[Qwen3NextConfig]):
    """Pre-norm layers of a gated delta net or gated attention, then a feed-forward block or a mixture (Qwen3-Next
    2025)."""

    def layer(self, config: Qwen3NextConfig, index: int) -> Layer:
        name = f"layers.{index}"
        if index in config.attention_layers:
            return pre_norm(config, index, Attention(name, config, norm="heads", gated=True))
        return pre_norm(config, index, DeltaNet(name, config, config.delta_net))
