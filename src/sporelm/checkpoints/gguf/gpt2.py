"""GGUF files of GPT-2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gpt2 import GPT2

GPT2_KEYS: Final = (
    Key("layers", "block_count", "u32"),
    Key("width", "embedding_length", "u32"),
    Key("ffn", "feed_forward_length", "u32"),
    Key("heads", "attention.head_count", "u32"),
    Key("eps", "attention.layer_norm_epsilon", "f32"),
)
ALL_BIASES: Final = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
GPT2_TENSORS: Final = {
    **DECODER_TENSORS,
    **NORM_BIAS_TENSORS,
    **FUSED_QKV_TENSORS,
    "positions.weight": "position_embd.weight",
}


@register
class Gpt2Gguf(GgufSchema):
    """`gpt2`."""

    names = ("gpt2",)
    architecture = GPT2
    keys = gguf_keys(*GPT2_KEYS, without=("head_dim", "kv_heads", "rotary", "window"))
    constants = {"rotary": 0, **ALL_BIASES}
    tensors = GPT2_TENSORS
