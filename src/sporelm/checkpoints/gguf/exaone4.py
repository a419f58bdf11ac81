"""GGUF files of EXAONE 4."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.exaone4 import Exaone4
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4  # each fourth layer has no window
WINDOWED_LAYERS: Final = 64  # of the 32B, the only model whose window llama.cpp reads


def find_unused_window(config: ModelConfig) -> str:
    """Return the clause that no layer uses the window; "" if some do. A GGUF file could not hold the window then, and
    its layers would be rotated."""
    is_unused = config.window is not None and len(config.full_layers) == config.layers
    return "none of its layers has positions" if is_unused else ""


@register
class Exaone4Gguf(GgufSchema):
    """`exaone4`."""

    names = ("exaone4",)
    architecture = Exaone4
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | POST_NORM_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return config if config.layers == WINDOWED_LAYERS else replace(config, window=None)

    def find_unsupported(self, config: ModelConfig) -> str:
        if config.window and config.layers != WINDOWED_LAYERS:
            return "it has a window but not 64 layers"
        return find_unused_window(config)
