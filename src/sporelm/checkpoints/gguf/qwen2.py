"""GGUF files of Qwen2 and Qwen2.5."""

from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class Qwen2Gguf(GgufSchema):
    """`qwen2`: Llama with biases on query, key and value."""

    names = ("qwen2",)
    architecture = Llama
    constants = {"attention_bias": True}
    tensors = DECODER_TENSORS
    llama_cpp_has_window = False
