"""Gemma 2: Gemma with windows, norms after blocks too, and capped scores and logits."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import GatedMLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("gemma2")
class Gemma2(Decoder):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))) (Gemma team 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu_tanh"), behind=True)
