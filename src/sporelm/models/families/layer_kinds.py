"""Names of `checkpoints.hybrid_layers`, for families that are not converted to schemas yet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints import hybrid_layers
from sporelm.checkpoints.fields import Fields
from sporelm.models.config import ModelConfig

ROUTER = "blk.{}.ffn_gate_inp.weight"
KV, ROTATED = hybrid_layers.GGUF_KV_HEADS, hybrid_layers.GGUF_ROPE_PATTERN
ATTENTION, OTHER = hybrid_layers.ATTENTION_TYPES, hybrid_layers.RECURRENT_TYPES
key_heads, rotation_marks = hybrid_layers.kv_heads_metadata, hybrid_layers.read_rope_pattern


def attention_layers(values: Fields, told: Any, layers: int, *, flags: bool = False) -> frozenset[int]:
    return hybrid_layers.read_attention_layers(values, told, layers, are_flags=flags)


def by_key_heads(values: dict[str, Any]) -> dict[str, Any]:
    return dict(hybrid_layers.with_types_by_kv_heads(Fields(values, "")).values)


def with_routers(
    config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    dense = frozenset(layer for layer in range(config.layers) if ROUTER.replace("{}", str(layer)) not in shapes)
    if config.experts is None or len(dense) == config.layers:
        return replace(config, experts=None)
    leading = len(dense) if dense == {*range(len(dense))} else 0
    return replace(config, experts=replace(config.experts, dense=frozenset() if leading else dense, leading=leading))
