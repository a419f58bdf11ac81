"""GGUF files of BLOOM."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bloom import Bloom

BLOOM_CONSTANTS: Final = {"rotary": 0, "alibi": 8.0, **ALL_BIASES}


@register
class BloomGguf(GgufSchema):
    """`bloom`."""

    names = ("bloom",)
    architecture = Bloom
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("ffn", "feed_forward_length", "u32"),
        Key("heads", "attention.head_count", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = BLOOM_CONSTANTS
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **FUSED_QKV_TENSORS,
        **{f"embedding_norm.{part}": f"token_embd_norm.{part}" for part in ("weight", "bias")},
    }
