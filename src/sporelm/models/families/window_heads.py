"""Files of families whose layers with a window have query heads and rotary positions of their own: Laguna, Step 3.5."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sporelm.checkpoints.config_files import WINDOWED_LAYERS, full_layers_of, window_of
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.blocks.head_gated_attention import head_tables
from sporelm.models.config import MOST_HEADS, ModelConfig
from sporelm.models.families.layer_types import LOCAL_SHARE, LOCAL_THETA
from sporelm.models.position_tables import position_tables

HEADS, WINDOW = "attention.head_count", "attention.sliding_window"
LOCAL_HEADS = "local_heads"  # ours, in place of a list


@dataclass(frozen=True, kw_only=True)
class WindowHeads:
    """What layers with a window have; that of the others is the configuration's."""

    local_heads: int = 0  # query heads
    local_rotary: int | None = None  # numbers of a head that are rotated; None: no layer has a window


def of_kind(config: ModelConfig, layer: int) -> ModelConfig:
    """The configuration with the heads of one layer."""
    return config if config.window_of(layer) is None else replace(config, heads=config.own.local_heads)


def heads_of(config: ModelConfig) -> list[int]:
    """The number of query heads of each layer."""
    return [of_kind(config, layer).heads for layer in range(config.layers)]


def tables(config: ModelConfig, context: int) -> dict[str, np.ndarray]:
    """`Decoder.tables` of a model whose heads have gates."""
    counts = {config.heads, config.own.local_heads}
    return position_tables(config, context, config.own.local_rotary or 0) | head_tables(config.head_dim, counts)


def one_each(counts: Sequence[Any], full: Set[int], key: str) -> dict[str, int]:
    """A list of each layer's heads as two numbers: under `key` that of the layers `full`, beside it that of the others.

    Raises UnsupportedModel where layers of one kind differ.
    """
    kinds = [sorted({n for layer, n in enumerate(counts) if (layer in full) is kind}) for kind in (True, False)]
    if any(len(kind) > 1 for kind in kinds):
        what = f"{key} of the layers is {shown(list(counts))}"
        raise UnsupportedModel(f"{what}; those without a window must be alike, and those with one")
    first, local = (kind[0] if kind else None for kind in kinds)
    found = {key: local if first is None else first, LOCAL_HEADS: first if local is None else local}
    return {name: count for name, count in found.items() if count is not None}


def numbers_or_flags(value: Any) -> list[int]:
    """A list of whole numbers or of flags; empty for anything else."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return found if isinstance(found, list) and all(isinstance(each, int) for each in found) else []


def regrouped(usual: Callable[[int], Set[int]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """`Family.regrouped`: lists of GGUF metadata as two numbers, layers that predict further ahead left out.

    usual   of a number of layers: those without a window, where the file does not say
    """

    def of_gguf(values: dict[str, Any]) -> dict[str, Any]:
        counts, told = (numbers_or_flags(values.get(key)) for key in (HEADS, WINDOWED_LAYERS))
        layers, further = values.get("block_count"), values.get("nextn_predict_layers", 0)
        if not isinstance(layers, int) or not isinstance(further, int):
            return values
        layers -= further
        found = {**values, WINDOWED_LAYERS: told[:layers]} if told else values
        window = values.get(WINDOW)
        if not counts or not isinstance(window, int) or not window:
            return found
        full = {layer for layer, local in enumerate(told) if not local} if told else usual(layers)
        return found | one_each(counts[:layers], full, HEADS)

    return of_gguf


def finished(config: ModelConfig, values: Fields, kind: Kind, window: int | None = None) -> ModelConfig:
    """The configuration with its windows, and with the heads of the layers that have them; `window` is what config.json
    means by silence. Raises ModelFileError, UnsupportedModel for layers that cannot be."""
    layers, own, theta, rotary = config.layers, config.own, config.local_theta, config.own.local_rotary
    if kind == HF:
        full = full_layers_of(values, layers) if values.has("layer_types") else frozenset(range(layers))
        config = replace(config, full_layers=full, window=window_of(values, "sliding_window", window))
        if config.window is None and len(full) < layers:
            raise UnsupportedModel(
                f"{values.where}: layer_types has sliding_attention, and sliding_window is not given"
            )
        theta = values.number(LOCAL_THETA, 1.0, MOST_THETA, 10000.0)
        rotary = int(config.head_dim * values.number(LOCAL_SHARE, 0.0, 1.0, 1.0))
    if config.window is None or len(config.full_layers) == layers:
        own = replace(own, local_heads=config.heads, local_rotary=None)
        return replace(config, window=None, full_layers=frozenset(), local_theta=0.0, own=own)
    heads, rotary = values.integer(LOCAL_HEADS, 1, MOST_HEADS, config.heads), rotary or config.rotary
    if heads % config.kv_heads or rotary % 2 or rotary > config.head_dim:
        what = f"{heads} query heads of {config.head_dim} numbers, {rotary} of them rotated"
        what = f"layers with a window have {what}; {config.kv_heads} key heads cannot be"
        keys = values.among("num_attention_heads", "num_key_value_heads", "num_attention_heads_per_layer")
        raise ModelFileError(f"{values.where}: {what}{keys}")
    own = replace(own, local_heads=heads, local_rotary=rotary)
    return replace(config, local_theta=theta or config.rope_theta, own=own)
