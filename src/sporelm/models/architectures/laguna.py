"""Laguna: heads with softplus gates, more of them in layers with a window, and DeepSeek V3's mixture."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import HeadGatedAttention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.window_heads import WindowHeadsConfig


@dataclass(frozen=True, kw_only=True)
class LagunaConfig(WindowHeadsConfig):
    """has_elementwise_gates: each number of a head has a gate, not each head."""

    has_elementwise_gates: bool = False


@architecture("laguna", LagunaConfig)
class Laguna(Decoder[LagunaConfig]):
    """The Llama layer with gated heads and a mixture (poolside 2026)."""

    def layer(self, config: LagunaConfig, index: int) -> Layer:
        attention = HeadGatedAttention(
            f"layers.{index}",
            config.for_layer(index),
            config.window_of(index),
            "softplus",
            is_elementwise=config.has_elementwise_gates,
        )
        return pre_norm(config, index, attention)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return self.config.head_gate_tables(context)
