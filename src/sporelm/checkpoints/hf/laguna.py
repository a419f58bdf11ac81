"""Hugging Face folders of Laguna."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys, with_leading_dense_layers
from sporelm.checkpoints.gguf.laguna import LAGUNA_ROUTING, check_rope_scaling, every_fourth_layer
from sporelm.checkpoints.hf_layer_types import (
    FULL,
    SLIDING,
    layer_types_json,
    rope_by_layer_type_json,
    with_rope_of_types,
)
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    MLP,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.window_head_keys import (
    numbers_or_flags,
    with_heads_of_types,
    with_hf_windows,
    with_window_heads,
)
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.laguna import Laguna, LagunaConfig
from sporelm.models.config import ModelConfig

DEFAULT_WINDOW: Final = 512
DEFAULT_ROPE: Final = {
    FULL: {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_theta": 10000.0},
}
HEADS_OF_LAYERS: Final = "num_attention_heads_per_layer"
# Values of `gating` and `gating_types` -> whether gates are elementwise.
GATES: Final = {"True": False, "per_head": False, "per_element": True}
HAS_ELEMENTWISE_GATES: Final = "has_elementwise_gates"  # our key


def with_types_of_layers(values: ConfigValues) -> ConfigValues:
    """Return the values with one number of query heads and the rotary parameters for each type of layers, and the kind
    of gates. Raises UnsupportedModel for gates of several kinds."""
    found = with_rope_of_types(with_leading_dense_layers(values), values.get("rope_parameters") or DEFAULT_ROPE)
    if counts := numbers_or_flags(values.get(HEADS_OF_LAYERS)):
        types = values.get("layer_types")
        types = types if isinstance(types, list) else [FULL] * len(counts)
        full_layers = {layer for layer in range(len(counts)) if types[layer : layer + 1] == [FULL]}
        found = with_heads_of_types(found, counts, full_layers, "num_attention_heads")
    more = values.get("gating_types") or []
    gates = [values.get("gating", True), *(more if isinstance(more, list) else [more])]
    kinds = {GATES.get(str(gate).replace("-", "_")) for gate in gates}
    if len(kinds) != 1 or None in kinds:
        what = f"gating and gating_types {format_value(gates)}: must be all per-head or all per-element"
        raise UnsupportedModel(f"{values.where}: {what}")
    return found.with_changes({HAS_ELEMENTWISE_GATES: kinds.pop()})


@register
class LagunaForCausalLM(HfSchema):
    """Laguna."""

    model_type = "laguna"
    architecture = Laguna
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared_ffn="shared_expert_intermediate_size",
            leading="first_k_dense_replace",
            scale="moe_routed_scaling_factor",
        ),
        Key("has_elementwise_gates", HAS_ELEMENTWISE_GATES, "bool"),
    )
    defaults = {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
    }
    constants = LAGUNA_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "moe_router_logit_softcapping": (0.0,),
        "moe_apply_router_weight_on_input": (False,),
    }
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(f"{MLP}shared_expert."),
        **choice_bias_tensors(f"{MLP}experts.e_score_correction_bias"),
        "layers.{}.attn_gate.weight": f"{ATTENTION}g_proj.weight",
    }
    module_names = ((".shared_expert.", ".shared_experts."),)
    allows_partial_rotary = True
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_fourth_layer(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> LagunaConfig:
        values = with_types_of_layers(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, LagunaConfig)
        config = with_window_heads(with_hf_windows(config, values, DEFAULT_WINDOW), values)
        check_rope_scaling(config, values.where)
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, LagunaConfig)
        return {
            **layer_types_json(config),
            **rope_by_layer_type_json(config, config.local_rotary or config.head_dim),
            HEADS_OF_LAYERS: config.layer_heads,
            "gating": "per-element" if config.has_elementwise_gates else True,
            "sliding_window": config.window or DEFAULT_WINDOW,
        }
