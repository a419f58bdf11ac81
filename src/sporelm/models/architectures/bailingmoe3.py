"""Ling 3: delta nets with bounded decays to one layer of latent attention with a gate for each head."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.kimi_linear import KimiLinearConfig
from sporelm.models.blocks import (
    ClampedMixture,
    GatedLatentAttention,
    Layer,
    SplitDeltaNet,
    feed_forward,
    pre_norm,
)
from sporelm.models.blocks.head_gated_attention import head_tables
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class BailingMoe3Config(KimiLinearConfig):
    """Bounds of decays, and of SwiGLU in each layer, 0 where there is none.

    kda_lower_bound        logarithm of the smallest decay of a delta net's state
    swiglu_limits          of the experts
    shared_swiglu_limits   of the expert that all tokens pass
    """

    kda_lower_bound: float = 0.0
    swiglu_limits: tuple[float, ...] = ()
    shared_swiglu_limits: tuple[float, ...] = ()


@architecture("bailingmoe3", BailingMoe3Config)
class BailingMoe3(Decoder[BailingMoe3Config]):
    """Kimi Linear's delta nets, DeepSeek V3's attention and mixtures (Ling AI 2026)."""

    def layer(self, config: BailingMoe3Config, index: int) -> Layer:
        name = f"layers.{index}"
        limits = config.swiglu_limits[index], config.shared_swiglu_limits[index]
        block = ClampedMixture(name, config, *limits) if any(limits) else feed_forward(name, config, index)
        if index in config.attention_layers:
            return pre_norm(config, index, GatedLatentAttention(name, config, config.latent, each=False), block)
        bound = config.kda_lower_bound
        delta_net = SplitDeltaNet(name, config, config.delta_net, decays_channels=True, min_log_decay=bound)
        return pre_norm(config, index, delta_net, block)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | head_tables(self.config.latent.v_head_dim, [self.config.heads])
