"""Hugging Face folders of GLM-4-0414."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf.chatglm import GLM_DEFAULTS, GLM_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import LAYER
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.glm4 import Glm4
from sporelm.models.config import ModelConfig


@register
class Glm4ForCausalLM(HfSchema):
    """GLM-4-0414."""

    model_type = "glm4"
    architecture = Glm4
    keys = hf_keys(Key("attention_bias", "attention_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias"}
    defaults = GLM_DEFAULTS
    constants = {"rope_style": "adjacent"}
    tensors = {
        **GLM_TENSORS,
        "layers.{}.attn_post_norm.weight": f"{LAYER}post_self_attn_layernorm.weight",
        "layers.{}.ffn_post_norm.weight": f"{LAYER}post_mlp_layernorm.weight",
    }
    allows_partial_rotary = True
    has_mtp_layers = True

    def class_for(self, config: ModelConfig) -> HfSchema:
        if config.rope_style == "half":
            what = "no transformers class has heads in the order of halves (rope.dimension_sections)"
            raise UnsupportedModel(what)
        return self

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"partial_rotary_factor": config.rotary / config.head_dim}
