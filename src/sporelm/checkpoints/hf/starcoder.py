"""Hugging Face folders of StarCoder 1 and SantaCoder."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import activation_key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.hf.gpt2 import GPT2_DEFAULTS, GPT2_KEYS, MASK_TENSORS, gpt2_tensors
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.starcoder import StarCoder
from sporelm.models.config import ModelConfig


@register
class GPTBigCodeForCausalLM(HfSchema):
    """StarCoder: GPT-2 with weights stored as [out, in]."""

    model_type = "gpt_bigcode"
    architecture = StarCoder
    keys = hf_keys(
        *GPT2_KEYS, activation_key("activation_function", "gelu_pytorch_tanh"), without=("head_dim", "kv_heads")
    )
    defaults = GPT2_DEFAULTS
    constants = {"rotary": 0, **ALL_BIASES}
    supported = {"multi_query": (True,), "scale_attn_weights": (True,), "add_cross_attention": (False,)}
    positions_key = "n_positions"
    ffn_widths = 4
    tensors = gpt2_tensors(is_transposed=False)
    ignored_tensors = MASK_TENSORS
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return replace(super().config_from_json(values, dtype), kv_heads=1)
