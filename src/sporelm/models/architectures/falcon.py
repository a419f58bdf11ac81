"""Falcon: attention and feed-forward block side by side; Falcon-RW: in turn, with biases and linear biases."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, ParallelLayer
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import SLOPES


@dataclass(frozen=True, kw_only=True)
class FalconConfig(ModelConfig):
    """has_two_norms: attention and feed-forward block have a norm each."""

    has_two_norms: bool


@architecture("falcon", FalconConfig)
class Falcon(Decoder[FalconConfig]):
    """x + attention(norm(x)) + mlp(norm(x)), few key heads (Almazrouei et al. 2023)."""

    norms = LayerNorm

    def layer(self, config: FalconConfig, index: int) -> Layer:
        name = f"layers.{index}"
        two = config.has_two_norms
        if not config.parallel:
            norms = (LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "middle"))
            return Layer(next(norms), Attention(name, config), next(norms), MLP(name, config, "gelu"))
        return ParallelLayer(
            LayerNorm(f"{name}.attn_norm{'_2' * two}", config.width, config.eps),
            Attention(name, config),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps) if two else None,
            MLP(name, config, "gelu"),
        )

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return tables with slopes that are scaled like scores, unlike in other architectures."""
        scale = np.float32(self.config.attention_scale)
        return {name: table * scale if name == SLOPES else table for name, table in super().tables(context).items()}
