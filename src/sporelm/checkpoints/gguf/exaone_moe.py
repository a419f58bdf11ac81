"""GGUF files of K-EXAONE."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf.exaone4 import WINDOW_STEP, find_unused_window
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.exaone_moe import ExaoneMoe
from sporelm.models.config import ModelConfig


@register
class ExaoneMoeGguf(GgufSchema):
    """`exaone-moe`."""

    names = ("exaone-moe",)
    architecture = ExaoneMoe
    keys = gguf_keys(
        *gguf_expert_keys(
            *("count", "used", "ffn", "shared", "shared_ffn", "leading", "scale", "renormalize", "groups"),
            *("top_groups", "scores"),
        )
    )
    constants = V3_ROUTING
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS | CHOICE_BIAS_TENSORS
    has_window_pattern = True
    has_mtp_layers = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unused_window(config)
