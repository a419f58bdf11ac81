"""AFM: Llama with a feed-forward block of squared ReLU, without a gate."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("arcee")
class Arcee(Decoder):
    """Attention as in Llama; the activation is Primer's (So et al. 2021)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "relu_squared"))
