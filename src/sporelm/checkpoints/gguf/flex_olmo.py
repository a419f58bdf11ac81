"""GGUF files of FlexOlmo."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo2 import Olmo2


@register
class FlexOlmoGguf(GgufSchema):
    """`flex_olmo`: OLMo 2 with a mixture of experts."""

    names = ("flex_olmo",)
    architecture = Olmo2
    keys = gguf_keys(*gguf_expert_keys("count", "used", "renormalize"))
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | POST_NORM_TENSORS | expert_tensors()
