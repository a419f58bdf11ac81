"""GGUF files of MPT."""

from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.mpt import Mpt

MAX_OCTAVES: Final = 1024
MAX_CLIP: Final = 1e6


@register
class MptGguf(GgufSchema):
    """`mpt`."""

    names = ("mpt",)
    architecture = Mpt
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("width", "embedding_length", "u32"),
        Key("ffn", "feed_forward_length", "u32"),
        Key("heads", "attention.head_count", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        Key("alibi", "attention.max_alibi_bias", "f32", 1, MAX_OCTAVES),
        Key("qkv_limit", "attention.clamp_kqv", "f32", 1e-6, MAX_CLIP, OPTIONAL),
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = {"rotary": 0}
    tensors = {
        **DECODER_TENSORS,
        **{name: row for name, row in FUSED_QKV_TENSORS.items() if name.endswith("weight")},
    }
