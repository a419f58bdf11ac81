"""GPT-J: one layer norm, then attention with rotary positions beside a feed-forward block."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("gptj")
class GPTJ(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), one norm for both (Wang, Komatsuzaki 2021)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms, shared=True)
