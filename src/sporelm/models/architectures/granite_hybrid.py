"""Granite 4: state spaces and a few layers of attention, dense or with experts, with Granite's scales; and Bamba,
without scales."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.mamba2 import Mamba2Config
from sporelm.models.blocks import Attention, Layer, Mamba2Mixer, feed_forward, pre_norm
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class GraniteHybridConfig(Mamba2Config):
    """attention_layers: the layers with attention in place of a Mamba mixer."""

    attention_layers: frozenset[int] = frozenset()


@architecture("granite_hybrid", GraniteHybridConfig)
class GraniteHybrid(Decoder[GraniteHybridConfig]):
    """Granite's layer with a state space in place of most of its attention (IBM 2025)."""

    def layer(self, config: GraniteHybridConfig, index: int) -> Layer:
        name = f"layers.{index}"
        has_attention = index in config.attention_layers
        mixer = Attention(name, config) if has_attention else Mamba2Mixer(name, config, config.mamba)
        return pre_norm(config, index, mixer, feed_forward(name, config, index))
