"""Heads and rotary positions of layers with a window, for architectures whose query heads differ between layers."""

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN
from sporelm.checkpoints.hf_layer_types import LOCAL_SHARE, LOCAL_THETA
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_HEADS
from sporelm.models.window_heads import WindowHeadsConfig

HEADS_KEY: Final = "attention.head_count"
WINDOW_KEY: Final = "attention.sliding_window"
LOCAL_HEADS: Final = "local_heads"  # our key for the heads of layers with a window
LOCAL_THETA_KEY: Final = Key("local_theta", "rope.freq_base_swa", "f32", 0.0, MAX_THETA, 0.0)
DEFAULT_THETA: Final = 10000.0
Config = TypeVar("Config", bound=WindowHeadsConfig)


def numbers_or_flags(value: Any) -> list[int]:
    """Return a list of integers or booleans; an empty one for anything else."""
    items = value.tolist() if hasattr(value, "tolist") else value
    return items if isinstance(items, list) and all(isinstance(item, int) for item in items) else []


def with_heads_of_types(values: ConfigValues, counts: Sequence[Any], full_layers: Set[int], key: str) -> ConfigValues:
    """Return the values with two numbers in place of the list of each layer's query heads.

    That of the full layers is under `key`, that of the others under `LOCAL_HEADS`. Raises UnsupportedModel if layers of
    one type differ.
    """
    full, local = (
        sorted({count for layer, count in enumerate(counts) if (layer in full_layers) is is_full})
        for is_full in (True, False)
    )
    if len(full) > 1 or len(local) > 1:
        what = f"{key} of the layers is {format_value(list(counts))}"
        what = f"{what}; layers of the same type must have equal values"
        raise UnsupportedModel(f"{values.where}: {what}")
    both = full or local
    return values.with_changes({key: both[0], LOCAL_HEADS: (local or full)[0]}) if both else values


def with_gguf_heads(values: ConfigValues, full_attention_layers: Callable[[int], Set[int]]) -> ConfigValues:
    """Return GGUF metadata with two numbers in place of its list of heads, and without the entries of MTP layers.

    full_attention_layers   function of the number of layers: layers without a window, for a file that does not list
    them
    """
    counts, pattern = (numbers_or_flags(values.get(key)) for key in (HEADS_KEY, WINDOW_PATTERN))
    layers, mtp_layers = values.get("block_count"), values.get("nextn_predict_layers", 0)
    if not isinstance(layers, int) or not isinstance(mtp_layers, int):
        return values
    layers -= mtp_layers
    if pattern:
        values = values.with_changes({WINDOW_PATTERN: pattern[:layers]})
    window = values.get(WINDOW_KEY)
    if not counts or not isinstance(window, int) or not window:
        return values
    full_layers = full_attention_layers(layers)
    if pattern:
        full_layers = {layer for layer, has_window in enumerate(pattern) if not has_window}
    return with_heads_of_types(values, counts[:layers], full_layers, HEADS_KEY)


def with_hf_windows(config: Config, values: ConfigValues, window: int | None = None) -> Config:
    """Return the configuration with the windows of a config.json and the rotary positions of layers with a window.

    window   default window
    """
    layers = config.layers
    full_layers = read_full_layers(values, layers) if values.has("layer_types") else frozenset(range(layers))
    config = replace(config, full_layers=full_layers, window=read_window(values, "sliding_window", window))
    if config.window is None and len(full_layers) < layers:
        what = "layer_types has sliding_attention, but sliding_window is missing"
        raise UnsupportedModel(f"{values.where}: {what}")
    return replace(
        config,
        local_theta=values.number(LOCAL_THETA, 1.0, MAX_THETA, DEFAULT_THETA),
        local_rotary=int(config.head_dim * values.number(LOCAL_SHARE, 0.0, 1.0, 1.0)),
    )


def with_window_heads(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the heads of layers with a window. Raises ModelFileError for heads that do not fit
    the others."""
    if config.window is None or len(config.full_layers) == config.layers:
        return replace(
            config,
            window=None,
            full_layers=frozenset(),
            local_theta=0.0,
            local_heads=config.heads,
            local_rotary=None,
        )
    heads = values.integer(LOCAL_HEADS, 1, MAX_HEADS, config.heads)
    rotary = config.local_rotary or config.rotary
    if heads % config.kv_heads or rotary % 2 or rotary > config.head_dim:
        what = f"{heads} query heads of {config.head_dim} dimensions, {rotary} of them rotated"
        what = f"layers with a window have {what}, which does not fit {config.kv_heads} KV heads"
        keys = values.list_keys("num_attention_heads", "num_key_value_heads", "num_attention_heads_per_layer")
        raise ModelFileError(f"{values.where}: {what}{keys}")
    return replace(config, local_theta=config.local_theta or config.rope_theta, local_heads=heads, local_rotary=rotary)
