"""GGUF files of openPangu Embedded."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class PanguGguf(GgufSchema):
    """`pangu-embedded`: Llama with biases of attention (Huawei 2025)."""

    names = ("pangu-embedded",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS
