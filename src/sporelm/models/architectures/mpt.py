"""MPT: layer norms without biases, GELU, and linear biases in place of positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("mpt")
class Mpt(Decoder):
    """Pre-norm attention with linear biases (Press et al. 2022), then GELU."""

    norms = staticmethod(layer_norm_without_bias)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu"), norm=self.norms)
