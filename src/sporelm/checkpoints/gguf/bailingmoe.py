"""GGUF files of Ling 1."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    PERMUTED_QK_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bailingmoe import BailingMoe

BAILING_ROUTING: Final = {"experts.epsilon": 1e-20}


@register
class BailingMoeGguf(GgufSchema):
    """`bailingmoe`. Queries and keys are permuted; the columns of a normalized output are stored normalized."""

    names = ("bailingmoe",)
    architecture = BailingMoe
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "shared", "scale", "renormalize"))
    constants = BAILING_ROUTING
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS
