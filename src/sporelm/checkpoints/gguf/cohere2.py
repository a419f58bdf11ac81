"""GGUF files of Command-R7B and Command-A."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.cohere import COHERE_CONSTANTS, COHERE_KEYS, find_untied
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.cohere2 import Cohere2
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4  # each fourth layer has no window


def without_rotation_in_full_layers(config: ModelConfig, where: str) -> ModelConfig:
    """Return the configuration with rotary positions only in layers with a window. Raises UnsupportedModel if there are
    none."""
    if config.window is None:
        raise UnsupportedModel(f"{where}: no layer has a window, so none would have rotary positions")
    return replace(config, nope_layers=config.full_layers)


@register
class Cohere2Gguf(GgufSchema):
    """`cohere2`."""

    names = ("cohere2",)
    architecture = Cohere2
    keys = gguf_keys(*COHERE_KEYS, Key("head_dim", "attention.key_length", "u32"))
    constants = COHERE_CONSTANTS
    tensors = DECODER_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return without_rotation_in_full_layers(super().config_from_metadata(gguf, values), gguf.where)

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_untied(config)
