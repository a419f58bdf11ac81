"""GGUF files of PLaMo 1."""

from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.plamo import Plamo


@register
class PlamoGguf(GgufSchema):
    """`plamo`. The heads of a group are adjacent."""

    names = ("plamo",)
    architecture = Plamo
    constants = {"parallel": True}
    tensors = DECODER_TENSORS
