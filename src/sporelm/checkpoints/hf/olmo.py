"""Hugging Face folders of OLMo 1."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, OPTIONAL, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.olmo import MAX_CLIP, MIN_CLIP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo import Olmo
from sporelm.models.config import ModelConfig

EPS = 1e-5  # of layer norms; config.json does not have it


@register
class OlmoForCausalLM(HfSchema):
    """OLMo 1."""

    model_type = "olmo"
    architecture = Olmo
    keys = hf_keys(
        Key("qkv_limit", "clip_qkv", "f32", MIN_CLIP, MAX_CLIP, OPTIONAL), *HF_ATTENTION_BIAS, without=("eps",)
    )
    class_keys = {"attention_bias": "attention_bias"}
    tensors = DECODER_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return replace(super().config_from_json(values, dtype), eps=EPS)
