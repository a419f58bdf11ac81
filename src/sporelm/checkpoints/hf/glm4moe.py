"""Hugging Face folders of GLM-4.5, GLM-4.6 and Solar Open."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.expert_keys import V3_HF_KEYS, V3_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.glm4moe import Glm4Moe, Glm4MoeConfig
from sporelm.models.config import ModelConfig

GLM4_MOE_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1280,
    "norm_topk_prob": True,
}
GLM4_MOE_CLASS_KEYS: Final = {"attention_bias": "attention_bias", "norm_topk_prob": "experts.renormalize"}


@register
class Glm4MoeForCausalLM(HfSchema):
    """GLM-4.5; by default half of each head is rotated."""

    model_type = "glm4_moe"
    architecture = Glm4Moe
    keys = hf_keys(
        *V3_HF_KEYS,
        Key("attention_bias", "attention_bias", "bool"),
        Key("has_head_norms", "use_qk_norm", "bool"),
    )
    class_keys = {**GLM4_MOE_CLASS_KEYS, "use_qk_norm": "has_head_norms"}
    defaults = {
        **GLM4_MOE_DEFAULTS,
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
    }
    constants = V3_ROUTING
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors() | shared_expert_tensors() | choice_bias_tensors()
    allows_partial_rotary = True
    has_mtp_layers = True

    def class_for(self, config: ModelConfig) -> HfSchema:
        assert isinstance(config, Glm4MoeConfig)
        assert config.experts is not None
        is_plain = config.rotary == config.head_dim and not config.has_head_norms
        return SolarOpenForCausalLM() if is_plain and not config.experts.leading else Glm4MoeForCausalLM()

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"num_nextn_predict_layers": 0}


@register
class SolarOpenForCausalLM(Glm4MoeForCausalLM):
    """Solar Open: whole heads are rotated, and all layers have experts."""

    model_type = "solar_open"
    class_keys = GLM4_MOE_CLASS_KEYS
    defaults = {**GLM4_MOE_DEFAULTS, "head_dim": 128, "rope_theta": 1e6, "intermediate_size": 10240}
