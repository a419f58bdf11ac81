"""Jais 1: layer norms, a gated feed-forward block, and linear biases in place of positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("jais")
class Jais(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Sengupta et al. 2023)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms)
