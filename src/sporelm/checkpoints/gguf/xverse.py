"""GGUF files of XVERSE."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class XverseGguf(GgufSchema):
    """`xverse`: Llama (XVERSE Technology 2023). Queries and keys are permuted."""

    names = ("xverse",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS
