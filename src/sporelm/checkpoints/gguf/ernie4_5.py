"""GGUF files of ERNIE 4.5 (dense)."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class Ernie45Gguf(GgufSchema):
    """`ernie4_5`: Llama whose heads are rotated by adjacent pairs (Baidu ERNIE team 2025)."""

    names = ("ernie4_5",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS
