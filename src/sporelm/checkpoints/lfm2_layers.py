"""Which layers of LFM2 and LFM3 are attention and which are convolutions, and the rows of the convolutions."""

from dataclasses import replace
from typing import Final, TypeVar

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hybrid_layers import read_attention_layers
from sporelm.checkpoints.row_numbers import rows_of_part
from sporelm.models.architectures.lfm2 import Lfm2Config
from sporelm.models.config import ModelConfig

LAYER_TYPES: Final = ("conv", "full_attention")  # of config.json
Config = TypeVar("Config", bound=Lfm2Config)


def _count_rows(config: ModelConfig) -> int:
    return config.width


# Rows of the projection in front of a convolution: of its gates and of what is convolved.
CONV_ROWS: Final = {name: rows_of_part(part, _count_rows, _count_rows, _count_rows) for part, name in enumerate("bcx")}


def with_attention_layers(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the layers that are attention by `layer_types`; if it is absent or empty, all."""
    layer_types = values.get("layer_types")
    attention_indexes = values.get("full_attn_idxs")
    if layer_types is None and isinstance(attention_indexes, list):
        layer_types = [LAYER_TYPES[layer in attention_indexes] for layer in range(config.layers)]
    layer_types = layer_types or [LAYER_TYPES[1]] * config.layers
    return replace(config, attention_layers=read_attention_layers(values, layer_types, config.layers))
