"""GGUF files of dots.llm1."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import V3_GGUF_KEYS, V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3


@register
class Dots1Gguf(GgufSchema):
    """`dots1`: Qwen3's attention with DeepSeek V3's mixture (rednote-hilab 2025)."""

    names = ("dots1",)
    architecture = Qwen3
    keys = gguf_keys(*V3_GGUF_KEYS, *gguf_expert_keys("scores"))
    constants = V3_ROUTING
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS | CHOICE_BIAS_TENSORS
    llama_cpp_has_window = False
