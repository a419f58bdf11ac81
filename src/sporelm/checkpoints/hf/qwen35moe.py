"""Hugging Face folders of Qwen3.5 with experts: the text model alone, and the multimodal model."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.delta_net_keys import ATTENTION_INTERVAL_KEY, DELTA_NET_HF_KEYS
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.qwen35 import QWEN35_CONSTANTS
from sporelm.checkpoints.hf.qwen3next import DELTA_NET_DEFAULTS
from sporelm.checkpoints.hf.qwen35 import QWEN35_TENSORS, Qwen3_5ForCausalLM
from sporelm.checkpoints.hf_tensors import MLP, expert_tensors, fused_expert_tensors, shared_expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable, with_alternatives

FUSED_TENSORS: Final[TensorTable] = {
    **QWEN35_TENSORS,
    **fused_expert_tensors(f"{MLP}gate.weight", f"{MLP}experts.gate_up_proj", f"{MLP}experts.down_proj"),
    **shared_expert_tensors(f"{MLP}shared_expert."),
    "layers.{}.ffn_gate_inp_shexp.weight": f"{MLP}shared_expert_gate.weight",
}
SINGLE_TENSORS: Final[TensorTable] = {
    name: row for name, row in expert_tensors().items() if name.endswith("_exps.weight")
}


@register
class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    """Qwen3.5 with experts, its text model. transformers 5 writes a tensor for each expert."""

    model_type = "qwen3_5_moe_text"
    keys = hf_keys(
        *DELTA_NET_HF_KEYS,
        ATTENTION_INTERVAL_KEY,
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared_ffn="shared_expert_intermediate_size",
        ),
        Key("ffn", "moe_intermediate_size", "u32"),
    )
    defaults = {
        **DELTA_NET_DEFAULTS,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    constants = {**QWEN35_CONSTANTS, "experts.shared_gate": True, "experts.renormalize": True}
    tensors = with_alternatives(FUSED_TENSORS, SINGLE_TENSORS)


@register
class Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeForCausalLM):
    """The multimodal Qwen3.5 with experts."""

    model_type = "qwen3_5_moe"
