"""Hugging Face folders of Hy3."""

from typing import Any

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys, with_leading_dense_layers
from sporelm.checkpoints.gguf.hy_v3 import HY_ROUTING, with_shared_width
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    MLP,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig
from sporelm.ops.expert_routing import MAX_EXPERTS


@register
class HYV3ForCausalLM(HfSchema):
    """Hy3."""

    model_type = "hy_v3"
    architecture = Qwen3
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared="num_shared_experts",
            leading="first_k_dense_replace",
            scale="router_scaling_factor",
        )
    )
    defaults = {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11158840.0,
        "max_position_embeddings": 131072,
    }
    constants = HY_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "route_norm": (True,),
        "qk_norm": (True,),
    }
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(f"{MLP}shared_mlp."),
        **choice_bias_tensors(f"{MLP}expert_bias"),
        "layers.{}.ffn_gate_inp.weight": f"{MLP}router.gate.weight",
    }
    module_names = ((".shared_mlp.", ".shared_experts."),)
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_leading_dense_layers(values)
        config = super().config_from_json(values, dtype)
        assert config.experts is not None
        shared = values.integer("num_shared_experts", 1, MAX_EXPERTS)
        return with_shared_width(config, shared * config.experts.ffn)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        experts = config.experts
        kinds = ["sparse" if experts and experts.at(layer) else "dense" for layer in range(config.layers)]
        return {"mlp_layer_types": kinds, "num_nextn_predict_layers": 0}
