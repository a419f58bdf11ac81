"""Hugging Face folders of Snowflake Arctic."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.arctic import check_used_experts
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.arctic import Arctic
from sporelm.models.config import ModelConfig

# Experts in every layer, parallel to attention and the dense block.
LAYER_JSON: Final[dict[str, Any]] = {"moe_layer_frequency": 1, "parallel_attn_mlp_res": True}


@register
class ArcticForCausalLM(HfSchema):
    """Arctic."""

    model_type = "arctic"
    architecture = Arctic
    keys = hf_keys(*hf_expert_keys(count="num_local_experts", used="num_experts_per_tok"))
    defaults = {"moe_layer_frequency": 2, "parallel_attn_mlp_res": False}
    constants = {"experts.renormalize": True}
    supported = {
        "hidden_act": ("silu",),
        "sliding_window": (None,),
        **{key: (value,) for key, value in LAYER_JSON.items()},
    }
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(f"{LAYER}block_sparse_moe.", ("w1", "w3", "w2")),
        "layers.{}.ffn_norm.weight": f"{LAYER}residual_layernorm.weight",
        "layers.{}.ffn_norm_exps.weight": f"{LAYER}post_attention_layernorm.weight",
        "layers.{}.ffn_gate.weight": f"{LAYER}residual_mlp.w1.weight",
        "layers.{}.ffn_up.weight": f"{LAYER}residual_mlp.w3.weight",
        "layers.{}.ffn_down.weight": f"{LAYER}residual_mlp.w2.weight",
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        check_used_experts(config, values.where)
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return dict(LAYER_JSON)
