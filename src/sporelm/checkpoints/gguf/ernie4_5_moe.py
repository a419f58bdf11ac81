"""GGUF files of ERNIE 4.5's text mixtures."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import GGUF_CHOICE_BIAS_KEY, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

ERNIE_MOE_CONSTANTS: Final = {
    "rope_style": "adjacent",
    "experts.choice_bias": True,
    "experts.renormalize": True,
}


@register
class Ernie45MoeGguf(GgufSchema):
    """`ernie4_5-moe`: Llama rotated by adjacent pairs, with a mixture of experts (Baidu ERNIE team 2025)."""

    names = ("ernie4_5-moe",)
    architecture = Llama
    keys = gguf_keys(
        *gguf_expert_keys("count", "used", "ffn", "shared", "shared_ffn", "leading", "step"), GGUF_CHOICE_BIAS_KEY
    )
    constants = ERNIE_MOE_CONSTANTS
    tensors = DECODER_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS | CHOICE_BIAS_TENSORS

    def find_unsupported(self, config: ModelConfig) -> str:
        return "its last layers have no experts" if config.experts and config.experts.dense else ""
