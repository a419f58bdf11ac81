"""Hugging Face folders of Qwen3-30B-A3B and Qwen3-235B-A22B."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf.qwen2 import with_optional_windows
from sporelm.checkpoints.hf.qwen2moe import QWEN_EXPERT_KEYS, with_mlp_only_layers
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig


def with_num_experts(values: ConfigValues) -> ConfigValues:
    """Return the values with the number of experts under its older key too; transformers 5 writes another."""
    count = values.get("num_local_experts")
    return values if count is None else values.with_changes({"num_experts": count})


@register
class Qwen3MoeForCausalLM(HfSchema):
    """Qwen3 with a mixture of experts."""

    model_type = "qwen3_moe"
    architecture = Qwen3
    keys = hf_keys(*QWEN_EXPERT_KEYS, *HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias", "norm_topk_prob": "experts.renormalize"}
    defaults = {
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_num_experts(values)
        config = super().config_from_json(values, dtype)
        return with_mlp_only_layers(with_optional_windows(config, values), values)
