"""Hugging Face folders of Qwen2-VL and Qwen2.5-VL: their text model."""

from typing import Any

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.qwen2vl import DEFAULT_SECTION, with_mrope_section
from sporelm.checkpoints.hf.qwen2 import with_optional_windows
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, with_inner_prefix
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import INNER_MODEL_PREFIXES
from sporelm.checkpoints.text_config import (
    IMAGE_ROPE_KEYS,
    MULTIMODAL_TENSORS,
    lift_image_rope_keys,
    select_text_config,
)
from sporelm.models.architectures.qwen2vl import Qwen2VL, Qwen2VLConfig
from sporelm.models.config import ModelConfig

# Rotary parameters: the number of pairs for each of the three positions, and whether they alternate.
MROPE_SECTION, MROPE_INTERLEAVED = IMAGE_ROPE_KEYS


def with_text_model(values: ConfigValues) -> ConfigValues:
    """Return the values of the text model, with the rotary parameters for images at the top level."""
    return values.with_values(lift_image_rope_keys(select_text_config(dict(values.values))))


@register
class Qwen2VLForConditionalGeneration(HfSchema):
    """Qwen2-VL."""

    model_type = "qwen2_vl"
    architecture = Qwen2VL
    defaults = {
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "max_window_layers": 80,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    }
    constants = {"attention_bias": True}
    supported = {"hidden_act": ("silu",), MROPE_INTERLEAVED: (False,)}
    inner_key = "text_config"
    tensors = with_inner_prefix(DECODER_TENSORS)
    prefix_variants = INNER_MODEL_PREFIXES
    ignored_tensors = MULTIMODAL_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Qwen2VLConfig:
        values = with_text_model(values)
        config = with_optional_windows(super().config_from_json(values, dtype), values)
        return with_mrope_section(config, values, MROPE_SECTION, DEFAULT_SECTION)

    def extra_rope_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Qwen2VLConfig)
        return {MROPE_SECTION: list(config.mrope_section)}


@register
class Qwen2_5_VLForConditionalGeneration(Qwen2VLForConditionalGeneration):
    """Qwen2.5-VL."""

    model_type = "qwen2_5_vl"
    inner_key = ""
