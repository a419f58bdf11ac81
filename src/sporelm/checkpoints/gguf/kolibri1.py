"""GGUF files of Kolibri 1."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    POST_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.kolibri1 import Kolibri1
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 5  # each fifth layer has no window
KOLIBRI_ROUTING: Final = {"experts.scores": "sigmoid_of_chosen", "experts.choice_bias": True}


def without_rotation_in_full_layers(config: ModelConfig) -> ModelConfig:
    """Return the configuration with rotary positions only in layers with a window, if there are any."""
    return replace(config, nope_layers=config.full_layers if config.window else frozenset())


@register
class Kolibri1Gguf(GgufSchema):
    """`kolibri1`. A file without a window has rotary positions in all layers."""

    names = ("kolibri1",)
    architecture = Kolibri1
    keys = gguf_keys(
        Key("ffn", "feed_forward_length", "u32"),
        *gguf_expert_keys("count", "used", "ffn", "shared_ffn", "renormalize"),
    )
    constants = KOLIBRI_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **POST_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return without_rotation_in_full_layers(super().config_from_metadata(gguf, values))

    def find_unsupported(self, config: ModelConfig) -> str:
        return "none of its layers has positions" if len(config.nope_layers) == config.layers else ""
