"""Hugging Face folders of DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash and Youtu-LLM."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import (
    V3_HF_KEYS,
    hf_expert_keys,
    with_leading_dense_layers,
    with_optional_experts,
)
from sporelm.checkpoints.gguf.deepseek2 import with_deepseek_routing
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.deepseek2 import Deepseek2
from sporelm.models.config import Experts, ModelConfig

RENORMALIZE_KEY: Final = {"norm_topk_prob": "experts.renormalize"}
_WIDTHS: Final = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
}
DEEPSEEK_V3_DEFAULTS: Final = {
    **_WIDTHS,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 4096,
}
TOPK_METHODS: Final = ("greedy", "group_limited_greedy", "noaux_tc", None)


class _Deepseek2HfSchema(LatentHfSchema):
    """The base of the classes."""

    architecture = Deepseek2
    keys = hf_keys(*LATENT_HF_KEYS, *with_optional_experts(V3_HF_KEYS), *hf_expert_keys(scores="scoring_func"))
    class_keys = RENORMALIZE_KEY
    constants = {"rope_style": "adjacent"}
    supported = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,), "moe_layer_freq": (1,)}
    tensors = {
        **DECODER_TENSORS,
        **LATENT_HF_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(),
    }
    has_mtp_layers = True
    reads_rope_interleave = True

    def class_for(self, config: ModelConfig) -> HfSchema:
        if config.experts is None:
            return YoutuForCausalLM()
        return DeepseekV3ForCausalLM() if config.experts.scores == "sigmoid" else DeepseekV2ForCausalLM()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        rotary, head_dim = values.get("qk_rope_head_dim"), values.get("head_dim")
        if head_dim is not None and head_dim != rotary:  # transformers computes its angles from head_dim
            what = f"head_dim {format_value(head_dim)} is not supported; qk_rope_head_dim {rotary} is"
            raise UnsupportedModel(f"{values.where}: {what}")
        if values.get("topk_method") == "greedy":  # experts are selected from all groups
            values = values.with_changes({"n_group": 0, "topk_group": 0})
        values = with_leading_dense_layers(values)
        config = super().config_from_json(values, dtype)
        if config.experts is None:
            return config
        self.check_routing(config.experts, values)
        return with_deepseek_routing(config, replace(config.experts, choice_bias=config.experts.scores == "sigmoid"))

    def check_routing(self, experts: Experts, values: ConfigValues) -> None:
        """Raise UnsupportedModel for another selection of experts than the class's."""
        if (method := values.get("topk_method")) not in TOPK_METHODS:
            known = ", ".join(str(each) for each in TOPK_METHODS if each)
            raise UnsupportedModel(f"{values.where}: topk_method {format_value(method)} is not supported; {known} are")

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        found, experts = super().extra_json(config), config.experts
        if experts is None:
            return found
        method = "greedy"
        if experts.scores == "sigmoid":
            method = "noaux_tc"
        elif experts.groups > 1 and experts.scores == "softmax":
            method = "group_limited_greedy"
        return {**found, "topk_method": method, "num_nextn_predict_layers": 0}


@register
class DeepseekV2ForCausalLM(_Deepseek2HfSchema):
    """DeepSeek V2."""

    model_type = "deepseek_v2"
    defaults = {
        **_WIDTHS,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "topk_method": "greedy",
    }
    reads_rope_interleave = False

    def check_routing(self, experts: Experts, values: ConfigValues) -> None:
        super().check_routing(experts, values)
        if experts.scores == "sigmoid" or experts.renormalize:
            what = f"{self.class_name} with sigmoid scores or norm_topk_prob is not supported"
            raise UnsupportedModel(f"{values.where}: {what}")


@register
class DeepseekV3ForCausalLM(_Deepseek2HfSchema):
    """DeepSeek V3, R1, Kimi K2."""

    model_type = "deepseek_v3"
    defaults = DEEPSEEK_V3_DEFAULTS


@register
class Glm4MoeLiteForCausalLM(_Deepseek2HfSchema):
    """GLM-4.7-Flash."""

    model_type = "glm4_moe_lite"
    defaults = {
        **DEEPSEEK_V3_DEFAULTS,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
    }


@register
class YoutuForCausalLM(_Deepseek2HfSchema):
    """Youtu-LLM: dense layers only."""

    model_type = "youtu"
    class_keys = {}
    defaults = {
        **_WIDTHS,
        "n_routed_experts": 0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    }

    def check_routing(self, experts: Experts, values: ConfigValues) -> None:
        raise UnsupportedModel(f"{values.where}: {self.class_name} with n_routed_experts is not supported")
