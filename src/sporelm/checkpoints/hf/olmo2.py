"""Hugging Face folders of OLMo 2 and 3."""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.olmo2 import WINDOW_STEP, with_unscaled_windows
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo2 import Olmo2
from sporelm.models.config import ModelConfig


@register
class Olmo2ForCausalLM(HfSchema):
    """OLMo 2."""

    model_type = "olmo2"
    architecture = Olmo2
    keys = hf_keys(*HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias"}
    defaults: Mapping[str, Any] = {"rms_norm_eps": 1e-5}
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | POST_NORM_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_unscaled_windows(self.read_layers(values, dtype))

    def read_layers(self, values: ConfigValues, dtype: str) -> ModelConfig:
        """Return the configuration with the windows of its layers. transformers 5 has rotary parameters for each type
        of layer."""
        kinds = values.get("rope_parameters")
        if isinstance(kinds, dict) and "full_attention" in kinds:
            values = values.with_changes({"rope_parameters": kinds["full_attention"]})
        return super().config_from_json(values, dtype)

    def class_for(self, config: ModelConfig) -> HfSchema:
        return Olmo3ForCausalLM() if config.window else self


@register
class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """OLMo 3: windows in three layers of four."""

    model_type = "olmo3"
    class_keys = {"attention_bias": "attention_bias", "sliding_window": "window"}
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}

    def read_layers(self, values: ConfigValues, dtype: str) -> ModelConfig:
        return with_windows(super().read_layers(values, dtype), values, WINDOW_STEP)
