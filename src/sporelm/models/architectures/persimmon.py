"""Persimmon: layer norms, squared ReLU, and a layer norm of each head of queries and keys."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, pre_norm
from sporelm.models.blocks.layer_norm import HeadLayerNorm, SharedHeadLayerNorm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class PersimmonConfig(ModelConfig):
    """has_head_norms: queries and keys are normed head by head."""

    has_head_norms: bool = True


@architecture("persimmon", PersimmonConfig)
class Persimmon(Decoder[PersimmonConfig]):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Adept 2023)."""

    norms = LayerNorm

    def layer(self, config: PersimmonConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config)
        if config.has_head_norms:
            parts = (f"{name}.attn_{part}_norm" for part in "qk")
            norms: list[HeadLayerNorm] = [SharedHeadLayerNorm(part, config.head_dim, config.eps) for part in parts]
            attention.norms = norms
        return pre_norm(config, index, attention, MLP(name, config, "relu_squared"), norm=self.norms)
