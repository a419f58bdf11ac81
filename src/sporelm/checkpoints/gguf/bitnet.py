"""GGUF files of BitNet b1.58."""

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, activation_key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bitnet import ACTIVATIONS, BitNet


@register
class BitNetGguf(GgufSchema):
    """`bitnet`."""

    names = ("bitnet",)
    architecture = BitNet
    keys = gguf_keys(activation_key(GGUF_ACTIVATION_KEY, "silu", ACTIVATIONS), without=("window",))
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_sub_norm.weight": "blk.{}.attn_sub_norm.weight",
        "layers.{}.ffn_sub_norm.weight": "blk.{}.ffn_sub_norm.weight",
    }
