"""Hugging Face folders of EXAONE 4."""

from dataclasses import replace
from typing import Any, TypeVar

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.exaone4 import WINDOW_STEP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer, read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.exaone4 import Exaone4
from sporelm.models.config import MAX_LAYERS, ModelConfig

Config = TypeVar("Config", bound=ModelConfig)


def with_exaone_windows(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the windows of a config.json. Its pattern is a step, or a repeated string: L for a
    layer with a window, G for one without."""
    window = read_window(values, "sliding_window", 4096)
    full_layers = read_full_layers(values, config.layers)
    if not values.has("layer_types") and window is not None:
        pattern = values.get("sliding_window_pattern", WINDOW_STEP)
        if isinstance(pattern, str):
            full_layers = frozenset(index for index in range(config.layers) if pattern[index % len(pattern)] == "G")
        else:
            step = values.integer("sliding_window_pattern", 1, MAX_LAYERS, WINDOW_STEP)
            full_layers = every_nth_layer(step)(config.layers)
    return replace(config, window=window, full_layers=full_layers)


@register
class Exaone4ForCausalLM(HfSchema):
    """EXAONE 4."""

    model_type = "exaone4"
    architecture = Exaone4
    class_keys = {"sliding_window": "window"}
    defaults = {"num_key_value_heads": 32, "rms_norm_eps": 1e-5}
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | POST_NORM_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_exaone_windows(super().config_from_json(values, dtype), values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        # Without a list, transformers would need a window pattern, which the configuration lacks.
        return {} if config.window else {"layer_types": ["full_attention"] * config.layers}
