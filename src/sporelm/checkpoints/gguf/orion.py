"""GGUF files of Orion."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.orion import Orion


@register
class OrionGguf(GgufSchema):
    """`orion`."""

    names = ("orion",)
    architecture = Orion
    keys = gguf_keys(Key("eps", "attention.layer_norm_epsilon", "f32"), without=("window",))
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS
