"""Hugging Face folders of Qwen2 and Qwen2.5."""

from dataclasses import replace
from typing import TypeVar

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

MAX_WINDOW_LAYERS = 1 << 20
Config = TypeVar("Config", bound=ModelConfig)


@register
class Qwen2ForCausalLM(HfSchema):
    """Qwen2. With `use_sliding_window`, the layers of `layer_types`, or those from `max_window_layers` on, have a
    window."""

    model_type = "qwen2"
    architecture = Llama
    defaults = {"num_key_value_heads": 32, "max_position_embeddings": 32768}
    constants = {"attention_bias": True}
    tensors = DECODER_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_optional_windows(super().config_from_json(values, dtype), values)


def with_optional_windows(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the windows that `use_sliding_window` enables."""
    if not values.flag("use_sliding_window", False):
        return config
    full_layers = read_full_layers(values, config.layers)
    if not values.has("layer_types"):
        first = values.integer("max_window_layers", 0, MAX_WINDOW_LAYERS, 28)
        full_layers = frozenset(range(min(first, config.layers)))
    return replace(config, window=read_window(values, "sliding_window", 4096), full_layers=full_layers)
