"""Command-R, Command-R+, Aya: attention and feed-forward block beside each other, layer norms without biases."""

from dataclasses import dataclass
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, changed
from sporelm.models.blocks import Attention, Layer, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

LEAST, MOST = 1e-6, 1e6
DEFAULTS = {"tie_word_embeddings": True, "max_position_embeddings": 8192, "rope_theta": 10000.0}
DEFAULTS |= {"layer_norm_eps": 1e-5, "logit_scale": 0.0625}
FIELDS = (
    Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
    Field("scales.output", "logit_scale", "f32", "logit_scale", LEAST, MOST, 1.0),
    *ATTENTION_BIAS,
)


@dataclass(frozen=True)
class CohereParts:
    """What some of its models have."""

    head_norms: bool  # of queries and keys, one for each head


def reach(values: dict[str, Any]) -> dict[str, Any]:
    """Command-R's folders say elsewhere how far they were trained."""
    length = values.get("model_max_length")
    return values if length is None else {**values, "max_position_embeddings": length}


def untied(config: ModelConfig) -> str:
    return "" if config.tie_embeddings else "its output has a matrix of its own"


@architecture(
    Family(
        "command-r",
        (
            HfClass(
                "CohereForCausalLM",
                "cohere",
                DEFAULTS | {"rope_theta": 500000.0},
                (("attention_bias", "attention_bias"), ("use_qk_norm", "own.head_norms")),
            ),
        ),
        fields(
            *FIELDS,
            Field("own.head_norms", "", "bool", "use_qk_norm", weight="layers.{}.attn_q_norm.weight"),
            without=("window",),
        ),
        changed(COMMON, *HEAD_NORMS),
        fixed={"parallel": True, "rope_style": "adjacent"},
        reworded=reach,
        unsaid=untied,
        own=CohereParts,
    )
)
class Cohere(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), one norm for both (Cohere 2024)."""

    norms = staticmethod(layer_norm_without_bias)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, norm="each" if config.own.head_norms else "")
        return pre_norm(config, index, attention, norm=self.norms, shared=True)
