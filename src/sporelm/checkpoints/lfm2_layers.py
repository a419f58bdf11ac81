"""The attention and convolution layers of LFM2 and LFM3, and the rows of the convolutions."""

from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_rope_by_type import FULL, SLIDING
from sporelm.checkpoints.hybrid_layers import read_attention_layers
from sporelm.checkpoints.row_numbers import rows_of_part
from sporelm.models.architectures.lfm2 import Lfm2Config
from sporelm.models.config import ModelConfig

LAYER_TYPES: Final = ("conv", "full_attention")  # of config.json
Config = TypeVar("Config", bound=Lfm2Config)


def _count_rows(config: ModelConfig) -> int:
    return config.width


# Rows of the input projection of a convolution: its gates and its input.
CONV_ROWS: Final = {name: rows_of_part(part, _count_rows, _count_rows, _count_rows) for part, name in enumerate("bcx")}


def with_attention_layers(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the attention layers of `layer_types`; all layers if it is absent or empty."""
    layer_types = values.get("layer_types")
    attention_indexes = values.get("full_attn_idxs")
    if layer_types is None and isinstance(attention_indexes, list):
        layer_types = [LAYER_TYPES[layer in attention_indexes] for layer in range(config.layers)]
    layer_types = layer_types or [LAYER_TYPES[1]] * config.layers
    return replace(config, attention_layers=read_attention_layers(values, layer_types, config.layers))


def list_layer_types(config: ModelConfig, values: ConfigValues) -> Any:
    """Return `layer_types` of LFM3; the class's default if the file does not list them."""
    usual = {0: SLIDING, 2: FULL}  # by the layer's number modulo 4; the first layer is a convolution
    found = [usual.get(layer % 4, LAYER_TYPES[0]) if layer else LAYER_TYPES[0] for layer in range(config.layers)]
    return values.get("layer_types") or found


def with_window_or_conv_layers(config: Config, values: ConfigValues) -> Config:
    """Return the configuration of LFM3 with the attention layers, with a window or without."""
    kinds: Any = list_layer_types(config, values)
    if isinstance(kinds, list):
        kinds = [FULL if kind == SLIDING else kind for kind in kinds]
    return replace(config, attention_layers=read_attention_layers(values, kinds, config.layers))
