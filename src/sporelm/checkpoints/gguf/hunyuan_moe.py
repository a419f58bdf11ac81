"""GGUF files of Hunyuan-A13B."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hunyuan import Hunyuan


@register
class HunyuanMoeGguf(GgufSchema):
    """`hunyuan-moe`: Hunyuan with a mixture of experts and a shared expert."""

    names = ("hunyuan-moe",)
    architecture = Hunyuan
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "shared_ffn"), without=("window",))
    constants = {"experts.renormalize": True}
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS
