"""Hugging Face folders of OLMoE."""

from sporelm.checkpoints.config_keys import OPTIONAL, Key, hf_keys
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.olmo import MAX_CLIP, MIN_CLIP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmoe import Olmoe


@register
class OlmoeForCausalLM(HfSchema):
    """OLMoE."""

    model_type = "olmoe"
    architecture = Olmoe
    keys = hf_keys(
        Key("qkv_limit", "clip_qkv", "f32", MIN_CLIP, MAX_CLIP, OPTIONAL),
        *hf_expert_keys(count="num_experts", used="num_experts_per_tok", renormalize="norm_topk_prob"),
    )
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    defaults = {
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    supported = {"hidden_act": ("silu",), "attention_bias": (False,)}
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors()
