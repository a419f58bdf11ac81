"""GGUF files of EXAONE 3 and 3.5."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class ExaoneGguf(GgufSchema):
    """`exaone`: Llama (LG AI Research 2024)."""

    names = ("exaone",)
    architecture = Llama
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
        without=("window",),
    )
    tensors = DECODER_TENSORS
