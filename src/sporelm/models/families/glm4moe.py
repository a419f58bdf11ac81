"""GLM-4.5 and 4.6: heads rotated by half, norms of queries and keys in some, experts after the first dense layers; and
Solar Open, which has none of these."""

from dataclasses import dataclass
from typing import Any

from sporelm.checkpoints.experts import (
    V3_CHOICE,
    V3_FIELDS,
    choice_bias_name,
    expert_fields,
    expert_names,
    shared_names,
)
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, NORM_BETWEEN, changed
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1280,
    "norm_topk_prob": True,
}
FLAGS = (("attention_bias", "attention_bias"), ("norm_topk_prob", "experts.renormalize"))


@dataclass(frozen=True)
class Glm4MoeParts:
    """What some of its models have."""

    head_norms: bool  # of queries and keys


def _class(config: ModelConfig) -> str:
    """Solar Open's heads are rotated whole, and all its layers have experts."""
    plain = config.rotary == config.head_dim and not config.own.head_norms
    assert config.experts is not None
    return "SolarOpenForCausalLM" if plain and not config.experts.leading else "Glm4MoeForCausalLM"


@architecture(
    Family(
        "glm4moe",
        (
            HfClass(
                "Glm4MoeForCausalLM",
                "glm4_moe",
                DEFAULTS | {"partial_rotary_factor": 0.5, "first_k_dense_replace": 1, "moe_intermediate_size": 1408},
                (*FLAGS, ("use_qk_norm", "own.head_norms")),
            ),
            HfClass(
                "SolarOpenForCausalLM",
                "solar_open",
                DEFAULTS | {"head_dim": 128, "rope_theta": 1e6, "intermediate_size": 10240},
                FLAGS,
            ),
        ),
        fields(
            *V3_FIELDS,
            *expert_fields(scores=""),
            Field("attention_bias", "", "bool", "attention_bias"),
            Field("own.head_norms", "", "bool", "use_qk_norm", weight="layers.{}.attn_q_norm.weight"),
        ),
        changed(COMMON, *HEAD_NORMS, *expert_names(), *shared_names(), choice_bias_name(), NORM_BETWEEN),
        fixed=V3_CHOICE,
        choose=_class,
        words=lambda config: {"num_nextn_predict_layers": 0},
        partial_rotary=True,
        further_layers=True,
        own=Glm4MoeParts,
    )
)
class Glm4Moe(Decoder):
    """The Llama layer with a mixture in place of its feed-forward block (GLM team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(
            f"layers.{index}", config, config.window_of(index), norm="heads" if config.own.head_norms else ""
        )
        return pre_norm(config, index, attention)
