"""StarCoder2: layer norms and biases everywhere, rotary positions, a feed-forward block without a gate."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("starcoder2")
class StarCoder2(Decoder):
    """Pre-norm attention of grouped queries, then GELU (Lozhkov et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)
