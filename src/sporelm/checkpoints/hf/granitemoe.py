"""Hugging Face folders of Granite 3 with experts."""

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf.granite import GRANITE_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, fused_expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig


@register
class GraniteMoeForCausalLM(HfSchema):
    """Granite with a mixture of experts."""

    model_type = "granitemoe"
    architecture = Llama
    keys = hf_keys(
        *GRANITE_KEYS,
        *hf_expert_keys(count="num_local_experts", used="num_experts_per_tok", shared_ffn="shared_intermediate_size"),
    )
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"num_local_experts": 8, "num_experts_per_tok": 2}
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = DECODER_TENSORS | fused_expert_tensors(
        f"{LAYER}block_sparse_moe.router.layer.weight",
        f"{LAYER}block_sparse_moe.input_linear.weight",
        f"{LAYER}block_sparse_moe.output_linear.weight",
        f"{LAYER}shared_mlp.input_linear.weight",
        f"{LAYER}shared_mlp.output_linear.weight",
    )

    def class_for(self, config: ModelConfig) -> HfSchema:
        assert config.experts is not None
        return GraniteMoeSharedForCausalLM() if config.experts.shared_ffn else self


@register
class GraniteMoeSharedForCausalLM(GraniteMoeForCausalLM):
    """Granite with a shared expert."""

    model_type = "granitemoeshared"
