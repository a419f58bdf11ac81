"""Hugging Face folders of DeepSeek MoE (V1)."""

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, expert_tensors, shared_expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class DeepseekForCausalLM(HfSchema):
    """DeepSeek MoE."""

    model_type = "deepseek"
    architecture = Llama
    keys = hf_keys(
        *hf_expert_keys(
            count="n_routed_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared="n_shared_experts",
            leading="first_k_dense_replace",
            renormalize="norm_topk_prob",
        )
    )
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    defaults = {"n_shared_experts": 0, "first_k_dense_replace": 0}
    constants = {"experts.epsilon": 1e-20}
    supported = {
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "moe_layer_freq": (1,),
        "scoring_func": ("softmax",),
    }
    tensors = DECODER_TENSORS | expert_tensors() | shared_expert_tensors()
