"""Refact: Llama with layer norms without biases, and linear biases in place of positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("refact")
class Refact(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Small Magellanic Cloud 2023)."""

    norms = staticmethod(layer_norm_without_bias)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms)
