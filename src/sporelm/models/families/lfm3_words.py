"""How files describe LFM3: its three kinds of layers, and what turns in two of them."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.config_files import WINDOWED_LAYERS, window_of
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families.layer_kinds import attention_layers, key_heads
from sporelm.models.families.lfm2 import KINDS, ConvLayers
from sporelm.models.families.proportion import FULL, LOCAL, kinds_words, of_kinds, turning

ROTARY = {LOCAL: {"rope_theta": 1e4}, FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5}}


@dataclass(frozen=True)
class Lfm3Parts(ConvLayers):
    """LFM2's, and what this family alone has."""

    gated: bool = True  # what a head mixes is multiplied by a sigmoid of its own
    behind: bool = True  # what blocks add is normed


def of_hf(values: dict[str, Any]) -> dict[str, Any]:
    """config.json with its rotary parameters under keys of their own."""
    return values | of_kinds(values.get("rope_parameters") or ROTARY)


def _usual(layer: int) -> str:
    return FULL if layer % 4 == 2 else LOCAL if layer % 4 == 0 < layer else KINDS[0]


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers are attention, and which of those have a window. Raises UnsupportedModel for null windows."""
    layers = range(config.layers)
    told = values.values.get("layer_types") or [_usual(layer) for layer in layers]
    kinds = told if isinstance(told, list) else []
    local = frozenset(layer for layer, each in enumerate(kinds) if each == LOCAL)
    attention = attention_layers(values, [FULL if each == LOCAL else each for each in kinds] or told, config.layers)
    config = replace(config, own=replace(config.own, attention=attention))
    if kind != HF:
        return config
    if (window := window_of(values, "sliding_window", 256)) is None and local:
        raise UnsupportedModel(f"{values.where}: layers are {LOCAL!r}, but sliding_window is null: not supported")
    full = frozenset(layers) - local
    return replace(config, window=window if local else None, full_layers=full, rope_scaling=turning(config, values))


def words(config: ModelConfig) -> dict[str, Any]:
    """What config.json says of each layer."""
    windows = [config.window_of(layer) for layer in range(config.layers)]
    kinds = [KINDS[layer in config.own.attention] if each is None else LOCAL for layer, each in enumerate(windows)]
    return {"layer_types": kinds, **kinds_words(config)}


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """What GGUF files say of each layer."""
    windows = [config.window_of(layer) is not None for layer in range(config.layers)]
    return {**key_heads(config, "lfm3", config.own.attention), f"lfm3.{WINDOWED_LAYERS}": ("[bool]", windows)}
