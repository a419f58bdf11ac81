"""GGUF files of GPT-Neo."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gpt_neo import GPTNeo

GPT_NEO_CONSTANTS: Final = {"rotary": 0, "attention_out_bias": True, "mlp_bias": True, "scales.attention": 1.0}


def even_layers(layers: int) -> frozenset[int]:
    """Return the layers without a window in a file that does not list them."""
    return frozenset(range(0, layers, 2))


@register
class GptNeoGguf(GgufSchema):
    """`gpt_neo`. Attention scores are not scaled."""

    names = ("gpt_neo",)
    architecture = GPTNeo
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("heads", "attention.head_count", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        without=("head_dim", "kv_heads", "rotary"),
    )
    constants = GPT_NEO_CONSTANTS
    tensors = {**DECODER_TENSORS, **NORM_BIAS_TENSORS, "positions.weight": "position_embd.weight"}
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return even_layers(layers)
