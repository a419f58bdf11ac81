"""Nemotron 4, Minitron: squared ReLU without a gate, and layer norms."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("nemotron")
class Nemotron(Decoder):
    """Pre-norm attention of grouped queries, then squared ReLU (Parmar et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "relu_squared"), norm=self.norms)
