"""Gemma 1: Llama with a GELU gate and wide heads."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import GatedMLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("gemma")
class Gemma(Decoder):
    """The Llama layer with GeGLU (Gemma team 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu_tanh"))
