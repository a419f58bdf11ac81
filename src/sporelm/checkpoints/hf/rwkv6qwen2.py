"""Hugging Face folders of QRWKV6."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS
from sporelm.checkpoints.rwkv_keys import MAX_POSITIONS, RWKV_CONSTANTS, rwkv6_mix_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.rwkv6qwen2 import Rwkv6Qwen2
from sporelm.models.config import MAX_WIDTH, ModelConfig

LARGE_WIDTH: Final = 4096  # from this width on, the default ranks are doubled


def with_default_ranks(values: ConfigValues) -> ConfigValues:
    """Return the values with the default ranks of llama.cpp's converter, and unlimited positions."""
    width = values.get("hidden_size")
    is_large = type(width) is int and width >= LARGE_WIDTH
    ranks = {"lora_rank_tokenshift": 64 if is_large else 32, "lora_rank_decay": 128 if is_large else 64}
    given = {key: value for key, value in values.values.items() if value is not None}
    return values.with_values({**ranks, **given, "max_position_embeddings": MAX_POSITIONS})


@register
class RWKV6Qwen2ForCausalLM(HfSchema):
    """QRWKV6. Options of its code are supported with llama.cpp's values."""

    model_type = "rwkv6qwen2"
    architecture = Rwkv6Qwen2
    keys = hf_keys(
        Key("head_dim", "head_dim", "u32"),
        Key("attention_bias", "attention_bias", "bool", default=True),
        Key("token_shift_lora_rank", "lora_rank_tokenshift", "u32", 1, MAX_WIDTH),
        Key("decay_lora_rank", "lora_rank_decay", "u32", 1, MAX_WIDTH),
    )
    class_keys = {"attention_bias": "attention_bias"}
    constants = RWKV_CONSTANTS
    supported = {
        "hidden_act": ("silu",),
        "use_tokenshift": (True,),
        "groupnorm_att": (False,),
        "use_rope": (False,),
        "balance_state": (True,),
    }
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_gate.weight": f"{ATTENTION}gate.weight",
        **rwkv6_mix_tensors(ATTENTION, "rkvwg"),
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return super().config_from_json(with_default_ranks(values), dtype)
