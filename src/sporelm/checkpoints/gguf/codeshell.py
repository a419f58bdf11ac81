"""GGUF files of CodeShell."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES, GPT2_KEYS, GPT2_TENSORS
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.starcoder2 import StarCoder2


@register
class CodeShellGguf(GgufSchema):
    """`codeshell`: StarCoder with rotary positions and groups of query heads (Xie et al. 2024)."""

    names = ("codeshell",)
    architecture = StarCoder2
    keys = gguf_keys(*GPT2_KEYS, Key("kv_heads", "attention.head_count_kv", "u32"), without=("head_dim", "window"))
    constants = ALL_BIASES
    tensors = GPT2_TENSORS
