"""Hugging Face folders of Qwen3-VL: its text model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.qwen2vl import with_mrope_section
from sporelm.checkpoints.gguf.qwen3vl import DEFAULT_SECTION
from sporelm.checkpoints.hf.qwen2vl import MROPE_INTERLEAVED, MROPE_SECTION, with_text_model
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, with_inner_prefix
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import INNER_MODEL_PREFIXES
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS
from sporelm.models.architectures.qwen2vl import Qwen2VLConfig
from sporelm.models.architectures.qwen3vl import Qwen3VL
from sporelm.models.config import ModelConfig

DEEPSTACK: Final = "deepstack_visual_indexes"  # layers of the vision tower
DEFAULT_DEEPSTACK_LAYERS: Final = 3


@register
class Qwen3VLForConditionalGeneration(HfSchema):
    """Qwen3-VL."""

    model_type = "qwen3_vl"
    architecture = Qwen3VL
    keys = hf_keys(*HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias"}
    defaults: Mapping[str, Any] = {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 128000,
        "rope_theta": 5e5,
    }
    supported = {"hidden_act": ("silu",), MROPE_INTERLEAVED: (True,)}
    inner_key = "text_config"
    tensors = with_inner_prefix(DECODER_TENSORS | HEAD_NORM_TENSORS)
    prefix_variants = INNER_MODEL_PREFIXES
    ignored_tensors = MULTIMODAL_TENSORS

    def normalize(self, values: ConfigValues) -> ConfigValues:
        """Return the values of the text model."""
        return with_text_model(values)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Qwen2VLConfig:
        values = self.normalize(values)
        config = with_mrope_section(super().config_from_json(values, dtype), values, MROPE_SECTION, DEFAULT_SECTION)
        return with_deepstack_layers(config, values)

    def extra_rope_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Qwen2VLConfig)
        return {MROPE_SECTION: list(config.mrope_section), MROPE_INTERLEAVED: True}


def with_deepstack_layers(config: Qwen2VLConfig, values: ConfigValues) -> Qwen2VLConfig:
    """Return the configuration with the number of DeepStack layers in the vision tower's list."""
    vision = values.get("vision_config")
    layers = vision.get(DEEPSTACK) if isinstance(vision, Mapping) else None
    count = len(layers) if isinstance(layers, list) else DEFAULT_DEEPSTACK_LAYERS
    return replace(config, deepstack_layers=count)
