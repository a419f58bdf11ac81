"""GGUF files of OLMo 2 and 3."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo2 import Olmo2
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4  # each fourth layer of OLMo 3 has no window


def with_unscaled_windows(config: ModelConfig) -> ModelConfig:
    """Return the configuration with scaled rotary positions only in layers without a window."""
    return replace(config, local_theta=config.rope_theta if config.window else 0.0)


@register
class Olmo2Gguf(GgufSchema):
    """`olmo2`."""

    names = ("olmo2",)
    architecture = Olmo2
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | POST_NORM_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_unscaled_windows(super().config_from_metadata(gguf, values))
