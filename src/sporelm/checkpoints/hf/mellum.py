"""Hugging Face folders of Mellum 2."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, OPTIONAL, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys, read_dense_layers
from sporelm.checkpoints.gguf.mellum import WINDOW_STEP, with_local_theta
from sporelm.checkpoints.hf.gemma3 import with_rope_of_full_layers
from sporelm.checkpoints.hf_layer_types import layer_types_json, rope_by_layer_type_json
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer, read_full_layers, read_window
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig

# The rotary bases of a config.json without `rope_parameters`.
DEFAULT_BASES: Final = {"rope_theta": 5e5, "rope_local_base_freq": 1e4}


def with_usual_keys(values: ConfigValues) -> ConfigValues:
    """Return the values with one key for the number of experts, and with a rotary base for each type of layers."""
    found = {"num_experts": values.get("num_local_experts", values.get("num_experts"))}
    bases = {} if values.get("rope_parameters") else DEFAULT_BASES
    return with_rope_of_full_layers(values.with_changes({**found, **bases}))


@register
class MellumForCausalLM(HfSchema):
    """Mellum 2."""

    model_type = "mellum"
    architecture = Qwen3
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            renormalize="norm_topk_prob",
        ),
        *HF_ATTENTION_BIAS,
        Key("local_theta", "rope_local_base_freq", "f32", 0.0, MAX_THETA, OPTIONAL),
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "norm_topk_prob": "experts.renormalize",
        "sliding_window": "window",
    }
    defaults = {
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 896,
        "norm_topk_prob": True,
        "max_position_embeddings": 131072,
    }
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors()
    ignored_tensors = ("mtp.*",)
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_usual_keys(values)
        config = super().config_from_json(values, dtype)
        experts, layers = config.experts, config.layers
        assert experts is not None
        experts = replace(experts, dense=read_dense_layers(values, layers, frozenset()))
        full_layers = read_full_layers(values, layers) if values.has("layer_types") else frozenset(range(layers))
        window = read_window(values, "sliding_window", 1024) if len(full_layers) < layers else None
        config = replace(config, window=window, full_layers=full_layers if window else frozenset(), experts=experts)
        return with_local_theta(config)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**layer_types_json(config), **rope_by_layer_type_json(config)}
