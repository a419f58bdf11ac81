"""Hugging Face folders of Ling 2 and Ring 2."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.bailingmoe2 import BAILING2_ROUTING
from sporelm.checkpoints.hf.bailingmoe import BAILING_ATTENTION, BAILING_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import MLP, choice_bias_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.bailingmoe2 import BailingMoe2
from sporelm.models.config import ModelConfig

BAILING2_EXPERT_KEYS: Final = hf_expert_keys(
    count="num_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    shared="num_shared_experts",
    leading="first_k_dense_replace",
    scale="routed_scaling_factor",
    renormalize="norm_topk_prob",
    groups="n_group",
    top_groups="topk_group",
)
SHARED_WIDTH: Final = "moe_shared_expert_intermediate_size"


@register
class BailingMoeV2ForCausalLM(HfSchema):
    """Ling 2. The width of the shared expert must match the number of shared experts."""

    model_type = "bailing_moe"
    architecture = BailingMoe2
    keys = hf_keys(*BAILING2_EXPERT_KEYS)
    defaults = {"partial_rotary_factor": 0.5}
    constants = BAILING2_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "norm_topk_prob": (True,),
        "score_function": ("sigmoid",),
        "moe_router_enable_expert_bias": (True,),
        "use_bias": (False,),
        "use_qk_norm": (True,),
        "use_qkv_bias": (False,),
    }
    tensors = {
        **BAILING_TENSORS,
        "layers.{}.attn_q_norm.weight": f"{BAILING_ATTENTION}query_layernorm.weight",
        "layers.{}.attn_k_norm.weight": f"{BAILING_ATTENTION}key_layernorm.weight",
        **choice_bias_tensors(f"{MLP}gate.expert_bias"),
    }
    allows_partial_rotary = True
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        experts = config.experts
        assert experts is not None
        if values.has(SHARED_WIDTH) and values.get(SHARED_WIDTH) != experts.shared_width:
            what = f"{SHARED_WIDTH} must be {experts.shared_width}, the width of all shared experts"
            raise UnsupportedModel(f"{values.where}: {what}")
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"num_nextn_predict_layers": 0}
