"""Nemotron 4, Minitron: squared ReLU without a gate, layer norms stored less one, half of each head rotated."""

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.gemma import less_one
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, NORM_BIASES, changed

NORMS = less_one(*(names for names in COMMON if names.ours.endswith("norm.weight")))


@architecture(
    Family(
        "nemotron",
        (
            HfClass(
                "NemotronForCausalLM",
                "nemotron",
                {"norm_eps": 1e-5, "max_position_embeddings": 4096, "partial_rotary_factor": 0.5},
                (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias")),
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "norm_eps"),
            *ATTENTION_BIAS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
            without=("window",),
        ),
        changed(COMMON, *NORMS, *NORM_BIASES),
        only={"hidden_act": ("relu2",)},
        words=lambda config: {"partial_rotary_factor": config.rotary / config.head_dim},
        partial_rotary=True,
    )
)
class Nemotron(Decoder):
    """Norms in front, attention of grouped queries, squares of what is positive (Parmar et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "relu_squared"), norm=self.norms)
