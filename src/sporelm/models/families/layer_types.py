"""config.json where layers are of two types: what it says of each layer, and the rotary parameters of each type."""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.fields import shown
from sporelm.checkpoints.rope_fields import HF_ORIGINAL, PARTIAL
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import Yarn

FULL, LOCAL = "full_attention", "sliding_attention"
LOCAL_THETA, LOCAL_SHARE = "local_theta", "local_share"  # ours, of layers with a window


def by_type(values: dict[str, Any], kinds: Any) -> dict[str, Any]:
    """A config.json whose rotary parameters are of two types: those of layers without a window, and the others beside
    them. Raises UnsupportedModel for any other, and where layers with a window are scaled."""
    full, local = (kinds.get(kind) if isinstance(kinds, Mapping) else None for kind in (FULL, LOCAL))
    if not isinstance(full, Mapping) or not isinstance(local, Mapping | None):
        raise UnsupportedModel(f"config.json: rope_parameters {shown(kinds)} must be those of {FULL} and {LOCAL}")
    local = local or {}
    if (kind := local.get("rope_type", "default")) != "default":
        raise UnsupportedModel(f"config.json: rope_type {shown(kind)} of layers with a window is not supported")
    beside = {LOCAL_THETA: local.get("rope_theta"), LOCAL_SHARE: local.get(PARTIAL)}
    return {**values, "rope_parameters": full, **beside}


def lists(config: ModelConfig) -> dict[str, Any]:
    """What kind of attention and of feed-forward block each layer has."""
    layers, experts = range(config.layers), config.experts
    return {
        "layer_types": [FULL if config.window_of(layer) is None else LOCAL for layer in layers],
        "mlp_layer_types": ["sparse" if experts and experts.at(layer) else "dense" for layer in layers],
    }


def words(config: ModelConfig, local_rotary: int | None = None) -> dict[str, Any]:
    """More of config.json: the lists, and the rotary parameters, which are YaRN's or not scaled.

    `local_rotary`: numbers of a head that are rotated in layers with a window, where those are not all in all layers.
    """
    scaling, share = config.rope_scaling, {} if local_rotary is None else {PARTIAL: config.rotary / config.head_dim}
    full: dict[str, Any] = {"rope_type": "default"}
    if isinstance(scaling, Yarn):
        names = ("factor", "beta_fast", "beta_slow", "truncate")
        full = {"rope_type": "yarn", **{name: getattr(scaling, name) for name in names}}
        full |= {HF_ORIGINAL: scaling.original, "attention_factor": scaling.attention}
    local = {"rope_type": "default", "rope_theta": config.local_theta or config.rope_theta}
    local |= {PARTIAL: local_rotary / config.head_dim} if local_rotary else {}
    kinds = {FULL: {**full, "rope_theta": config.rope_theta, **share}, LOCAL: local}
    return {**lists(config), "rope_parameters": kinds, "rope_scaling": None}
