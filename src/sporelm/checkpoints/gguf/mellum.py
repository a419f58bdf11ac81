"""GGUF files of Mellum 2."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4  # each fourth layer has no window


def with_local_theta(config: ModelConfig) -> ModelConfig:
    """Return the configuration with a rotary base for layers with a window: they are never scaled, even if their base
    equals that of the others."""
    return replace(config, local_theta=(config.local_theta or config.rope_theta) if config.window else 0.0)


@register
class MellumGguf(GgufSchema):
    """`mellum`: Qwen3 with a mixture of experts, whose weights sum to one, and windows (JetBrains 2026)."""

    names = ("mellum",)
    architecture = Qwen3
    keys = gguf_keys(
        *gguf_expert_keys("count", "used", "ffn"),
        Key("local_theta", "rope.freq_base_swa", "f32", 0.0, MAX_THETA, OPTIONAL),
    )
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors()
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = with_local_theta(super().config_from_metadata(gguf, values))
        assert config.experts is not None
        return replace(config, experts=replace(config.experts, renormalize=True))

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=True)
