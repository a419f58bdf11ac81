"""GGUF files of Granite 3 with experts."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.granite import GRANITE_KEYS, GraniteGguf
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    PERMUTED_QK_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register


@register
class GraniteMoeGguf(GraniteGguf):
    """`granitemoe`: Granite with a mixture of experts and an optional shared expert (IBM 2024)."""

    names = ("granitemoe",)
    keys = gguf_keys(*GRANITE_KEYS, *gguf_expert_keys("count", "used", "shared_ffn"))
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS
