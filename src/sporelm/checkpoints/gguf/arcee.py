"""GGUF files of Arcee's AFM."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.arcee import Arcee


@register
class ArceeGguf(GgufSchema):
    """`arcee`. Queries and keys are permuted."""

    names = ("arcee",)
    architecture = Arcee
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS
