"""GGUF files of Helium."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class HeliumGguf(GgufSchema):
    """`helium`: Llama whose heads are rotated by adjacent pairs (Kyutai 2025)."""

    names = ("helium",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS
