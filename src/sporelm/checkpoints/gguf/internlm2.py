"""GGUF files of InternLM2 and 2.5."""

from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class InternLM2Gguf(GgufSchema):
    """`internlm2`: Llama (Cai et al. 2024). Queries and keys are permuted."""

    names = ("internlm2",)
    architecture = Llama
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS
