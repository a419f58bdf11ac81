"""GGUF files of Hunyuan (dense)."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hunyuan import Hunyuan


@register
class HunyuanDenseGguf(GgufSchema):
    """`hunyuan-dense`."""

    names = ("hunyuan-dense",)
    architecture = Hunyuan
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS
