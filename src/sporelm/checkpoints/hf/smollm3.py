"""Hugging Face folders of SmolLM3."""

from dataclasses import replace
from typing import Any, TypeVar

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.smollm3 import NOPE_STEP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import MAX_LAYERS, ModelConfig

Config = TypeVar("Config", bound=ModelConfig)


def with_nope_layers(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the layers without rotary positions: zeros of `no_rope_layers`; without that list,
    one at each interval."""
    interval = values.integer("no_rope_layer_interval", 1, MAX_LAYERS, NOPE_STEP)
    found = every_nth_layer(interval)(config.layers)
    marks = values.get("no_rope_layers")
    if marks is not None:
        if not isinstance(marks, list) or len(marks) != config.layers or any(mark not in (0, 1) for mark in marks):
            what = f"no_rope_layers must be 0 or 1 for each of {config.layers} layers"
            raise ModelFileError(f"{values.where}: {what}")
        found = frozenset(index for index, mark in enumerate(marks) if not mark)
    return replace(config, nope_layers=found)


@register
class SmolLM3ForCausalLM(HfSchema):
    """SmolLM3."""

    model_type = "smollm3"
    architecture = Llama
    keys = hf_keys(*HF_ATTENTION_BIAS, Key("mlp_bias", "mlp_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    defaults = {
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2e6,
    }
    supported = {"hidden_act": ("silu",), "use_sliding_window": (False,)}
    tensors = DECODER_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_nope_layers(super().config_from_json(values, dtype), values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"no_rope_layers": [int(index not in config.nope_layers) for index in range(config.layers)]}
