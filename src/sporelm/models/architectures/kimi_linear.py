"""Kimi Linear: three delta nets with a decay for each channel to one layer of latent attention without positions."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import DeltaNetShape, LatentAttention, Layer, SplitDeltaNet, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.latent_config import LatentConfig


@dataclass(frozen=True, kw_only=True)
class KimiLinearConfig(LatentConfig):
    """delta_net: the shape of the delta nets; their keys are as wide as their values.
    attention_layers: the layers with attention."""

    delta_net: DeltaNetShape
    attention_layers: frozenset[int] = frozenset()


@architecture("kimi_linear", KimiLinearConfig)
class KimiLinear(Decoder[KimiLinearConfig]):
    """DeepSeek V3's layer; a delta net with a decay for each channel in place of most of its attention."""

    def layer(self, config: KimiLinearConfig, index: int) -> Layer:
        name = f"layers.{index}"
        if index in config.attention_layers:
            return pre_norm(config, index, LatentAttention(name, config, config.latent))
        rank = config.delta_net.key_head_dim
        ranks = {"alpha": rank, "z": rank}
        return pre_norm(config, index, SplitDeltaNet(name, config, config.delta_net, decays_channels=True, ranks=ranks))
