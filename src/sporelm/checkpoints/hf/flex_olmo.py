"""Hugging Face folders of FlexOlmo."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo2 import Olmo2


@register
class FlexOlmoForCausalLM(HfSchema):
    """FlexOlmo: OLMo 2 with a mixture of experts."""

    model_type = "flex_olmo"
    architecture = Olmo2
    keys = hf_keys(
        *HF_ATTENTION_BIAS,
        *hf_expert_keys(count="num_experts", used="num_experts_per_tok", renormalize="norm_topk_prob"),
    )
    class_keys = {"norm_topk_prob": "experts.renormalize", "attention_bias": "attention_bias"}
    defaults = {
        "num_experts": 7,
        "num_experts_per_tok": 5,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
    }
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | POST_NORM_TENSORS | expert_tensors()
