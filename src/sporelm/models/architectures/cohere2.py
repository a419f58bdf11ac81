"""Command-R7B, Command-A: the layer of Command-R with windows and layers without positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("cohere2")
class Cohere2(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)); every fourth layer has neither window nor positions (Cohere 2025)."""

    norms = staticmethod(layer_norm_without_bias)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms, shared=True)
