"""Jamba: Mamba 1's layers with norms; attention without positions and experts at regular intervals."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.mamba import MambaConfig
from sporelm.models.blocks import Attention, Layer, MambaMixer, feed_forward, pre_norm
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class JambaConfig(MambaConfig):
    """attention_layers: the layers with attention in place of a Mamba mixer."""

    attention_layers: frozenset[int] = frozenset()


@architecture("jamba", JambaConfig)
class Jamba(Decoder[JambaConfig]):
    """The Llama layer without positions, a state space in place of most of its attention (Lieber et al. 2024)."""

    def layer(self, config: JambaConfig, index: int) -> Layer:
        name = f"layers.{index}"
        has_attention = index in config.attention_layers
        mixer = Attention(name, config) if has_attention else MambaMixer(name, config, config.mamba)
        return pre_norm(config, index, mixer, feed_forward(name, config, index))
