"""Jais 2: layer norms and biases everywhere, rotary positions, squared ReLU without a gate."""

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, NORM_BIASES, changed


@architecture(
    Family(
        "jais2",
        (
            HfClass(
                "Jais2ForCausalLM",
                "jais2",
                {"layer_norm_eps": 1e-5, "max_position_embeddings": 8192, "attention_bias": True, "mlp_bias": True},
                (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias")),
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            *ATTENTION_BIAS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
            without=("window",),
        ),
        changed(COMMON, *NORM_BIASES),
        only={"hidden_act": ("relu2",)},
    )
)
class Jais2(Decoder):
    """Norms in front, attention of grouped queries, squares of what is positive (Inception 2025)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "relu_squared"), norm=self.norms)
