"""GGUF files of Nemotron 4 and Minitron."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nemotron import Nemotron


@register
class NemotronGguf(GgufSchema):
    """`nemotron`. A part of each head is rotated."""

    names = ("nemotron",)
    architecture = Nemotron
    keys = gguf_keys(Key("eps", "attention.layer_norm_epsilon", "f32"), without=("window",))
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS
    allows_partial_rotary = True
