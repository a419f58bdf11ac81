"""Hugging Face folders of dots.llm1."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_HF_KEYS, V3_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import MAX_LAYERS, ModelConfig


@register
class Dots1ForCausalLM(HfSchema):
    """dots.llm1. The layers of `layer_types`, or those from `max_window_layers` on, have a window."""

    model_type = "dots1"
    architecture = Qwen3
    keys = hf_keys(*HF_ATTENTION_BIAS, *V3_HF_KEYS)
    class_keys = {"attention_bias": "attention_bias", "norm_topk_prob": "experts.renormalize"}
    defaults = {"max_position_embeddings": 2048, "num_key_value_heads": 32}
    constants = V3_ROUTING
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors() | shared_expert_tensors() | choice_bias_tensors()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        full_layers = read_full_layers(values, config.layers)
        if not values.has("layer_types"):
            first = values.integer("max_window_layers", 0, MAX_LAYERS, 62)
            full_layers = frozenset(range(min(first, config.layers)))
        window = read_window(values, "sliding_window", 4096)
        if len(full_layers) == config.layers:
            return config
        return replace(config, window=window, full_layers=full_layers)
