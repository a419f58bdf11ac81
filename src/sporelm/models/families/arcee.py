"""Arcee's AFM: Llama with a feed-forward block of squared ReLU, without a gate."""

from sporelm.models.blocks import MLP, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields


@architecture(
    Family(
        "arcee",
        (
            HfClass(
                "ArceeForCausalLM",
                "arcee",
                {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
                (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias")),
            ),
        ),
        fields(*ATTENTION_BIAS, Field("mlp_bias", "", "bool", "mlp_bias"), without=("window",)),
        only={"hidden_act": ("relu2",)},
        paired_rows=True,
    )
)
class Arcee(Decoder):
    """Attention as Llama's; the activation is Primer's (So et al. 2021)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "relu_squared"))
