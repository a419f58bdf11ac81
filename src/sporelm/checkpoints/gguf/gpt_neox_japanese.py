"""GGUF files of GPT-NeoX Japanese."""

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, Key, activation_key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gpt_neox_japanese import GPTNeoXJapanese


@register
class GptNeoXJapaneseGguf(GgufSchema):
    """`gpt_neox_japanese`."""

    names = ("gpt_neox_japanese",)
    architecture = GPTNeoXJapanese
    keys = gguf_keys(
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        activation_key(GGUF_ACTIVATION_KEY, "gelu"),
        without=("kv_heads", "head_dim", "window"),
    )
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS | FUSED_QKV_TENSORS
    allows_partial_rotary = True
