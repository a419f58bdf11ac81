"""How files describe Laguna: its gates, and its two types of layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.experts import with_leading
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families import layer_types, window_heads
from sporelm.models.families.layer_types import FULL, LOCAL
from sporelm.models.families.window_heads import WindowHeads, heads_of, numbers_or_flags, one_each
from sporelm.models.rope_scaling import UNSCALED, Yarn

WINDOW = 512  # where config.json does not say it
ROTARY = {FULL: {"rope_theta": 500000.0, "partial_rotary_factor": 0.5}, LOCAL: {"rope_theta": 10000.0}}
GATES = {"True": False, "per_head": False, "per_element": True}  # words for them -> whether they are of each number
COUNTS, EACH = "num_attention_heads_per_layer", "gates_each"


@dataclass(frozen=True, kw_only=True)
class LagunaParts(WindowHeads):
    """What it has besides."""

    each: bool = False  # gates are of each number of a head, not of a head


def usual(layers: int) -> frozenset[int]:
    return frozenset(range(0, layers, 4))


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The heads of both types of layers, their rotary parameters, and what kind of gates there are."""
    found, kinds = layer_types.by_type(with_leading(values), values.get("rope_parameters") or ROTARY), {}
    if counts := numbers_or_flags(values.get(COUNTS)):
        types = values.get("layer_types")
        types = types if isinstance(types, list) else [FULL] * len(counts)
        full = {layer for layer in range(len(counts)) if types[layer : layer + 1] == [FULL]}
        kinds = one_each(counts, full, "num_attention_heads")
    told = values.get("gating_types") or []
    gates = [values.get("gating", True), *(told if isinstance(told, list) else [told])]
    meant = {GATES.get(str(gate).replace("-", "_")) for gate in gates}
    if len(meant) != 1 or None in meant:
        raise UnsupportedModel(f"config.json: gating and gating_types {shown(gates)}: all per-head or all per-element")
    return {**found, **kinds, EACH: meant.pop()}


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config, scaling = window_heads.finished(config, values, kind, WINDOW), config.rope_scaling
    if scaling != UNSCALED and not isinstance(scaling, Yarn):
        raise UnsupportedModel(f"{values.where}: rotary positions may be scaled by yarn alone")
    return config


def noticed(config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    rows = shapes.get("blk.0.attn_gate.weight", (0,))[0]
    return replace(config, own=replace(config.own, each=rows == heads_of(config)[0] * config.head_dim))


def words(config: ModelConfig) -> dict[str, Any]:
    gating = "per-element" if config.own.each else True
    found = layer_types.words(config, config.own.local_rotary or config.head_dim)
    return {**found, COUNTS: heads_of(config), "gating": gating, "sliding_window": config.window or WINDOW}
