"""The layers with a sliding window in a config.json."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MAX_LAYERS, ModelConfig

LAYER_TYPES = ("full_attention", "sliding_attention")
Config = TypeVar("Config", bound=ModelConfig)


def every_nth_layer(step: int, first: int | None = None) -> Callable[[int], frozenset[int]]:
    """Return a function from the number of layers to each `step`th of them, starting at `first`; by default the last of
    each run."""
    return lambda layers: frozenset(range(step - 1 if first is None else first, layers, step))


def read_window(values: ConfigValues, key: str, default: int | None) -> int | None:
    """Return the window in positions; null means all positions: None."""
    if key not in values.values:
        return default
    return values.integer(key, 1, MAX_CONTEXT) if values.has(key) else None


def read_full_layers(values: ConfigValues, layers: int) -> frozenset[int]:
    """Return the layers of type full attention in `layer_types`; none if it is absent. Raises UnsupportedModel for
    other types."""
    kinds = values.get("layer_types")
    if kinds is None:
        return frozenset()
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in LAYER_TYPES for kind in kinds):
        what = f"layer_types must have one of {LAYER_TYPES} for each of the {layers} layers"
        raise UnsupportedModel(f"{values.where}: {what}")
    return frozenset(index for index, kind in enumerate(kinds) if kind == "full_attention")


def list_attention_types(config: ModelConfig) -> list[str]:
    """Return `layer_types` of a config.json."""
    return [LAYER_TYPES[config.window_of(layer) is not None] for layer in range(config.layers)]


def with_windows(
    config: Config, values: ConfigValues, step: int, *, step_key: str = "", window: int | None = 4096
) -> Config:
    """Return the configuration with windows in all layers except the full ones of `layer_types`, or except each
    `step`th.

    step_key   key of the step in config.json
    window     default window
    """
    step = values.integer(step_key, 1, MAX_LAYERS, step) if step_key else step
    if values.has("layer_types"):
        full_layers = read_full_layers(values, config.layers)
    else:
        full_layers = every_nth_layer(step)(config.layers)
    return replace(config, window=read_window(values, "sliding_window", window), full_layers=full_layers)
