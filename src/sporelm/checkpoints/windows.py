"""Which layers have a window, as config.json says it, and as GGUF files mean it that do not."""

from collections.abc import Callable
from dataclasses import replace

from sporelm.checkpoints.config_files import full_layers_of, window_of
from sporelm.checkpoints.fields import Fields
from sporelm.models.config import MAX_LAYERS, ModelConfig


def every(step: int) -> Callable[[int], frozenset[int]]:
    """Of so many layers, each `step`th: the last of each run."""
    return lambda layers: frozenset(range(step - 1, layers, step))


def windowed(
    config: ModelConfig, values: Fields, step: int, *, key: str = "", window: int | None = 4096
) -> ModelConfig:
    """The configuration with the windows of a config.json: in all layers but those `layer_types` tells, or but each
    `step`th, for which it may have a `key`. `window` is what it means by silence."""
    step = values.integer(key, 1, MAX_LAYERS, step) if key else step
    full = full_layers_of(values, config.layers) if values.has("layer_types") else every(step)(config.layers)
    return replace(config, window=window_of(values, "sliding_window", window), full_layers=full)
