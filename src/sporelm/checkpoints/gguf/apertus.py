"""GGUF files of Apertus."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.apertus import Apertus
from sporelm.models.blocks.xielu_mlp import NUMBERS


@register
class ApertusGguf(GgufSchema):
    """`apertus`. The metadata holds the parameters of the activation function for each layer."""

    names = ("apertus",)
    architecture = Apertus
    keys = gguf_keys(without=("window",))
    tensors = {**DECODER_TENSORS, **HEAD_NORM_TENSORS, **{f"xielu.{name}": f"xielu.{name}" for name in NUMBERS}}
    metadata_tensors = {f"xielu.{name}": shape for name, shape in NUMBERS.items()}
