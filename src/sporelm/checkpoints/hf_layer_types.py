"""config.json of models whose layers are of two types, with rotary parameters for each type."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, shown
from sporelm.checkpoints.hf_windows import layer_types_of
from sporelm.checkpoints.rope_fields import HF_ORIGINAL, PARTIAL
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import YarnScaling

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
# Where the rotary parameters of layers with a window stand among the values.
LOCAL_THETA: Final = "local_theta"
LOCAL_SHARE: Final = "local_share"
YARN_KEYS: Final = ("factor", "beta_fast", "beta_slow", "truncate")


def with_rope_of_types(values: ConfigValues, ropes: Any) -> ConfigValues:
    """Return the values with the rotary parameters of layers without a window, and those of the others beside them.

    ropes   by type of layers

    Raises UnsupportedModel if they are of other types, or if those of layers with a window are scaled.
    """
    full, local = (ropes.get(kind) if isinstance(ropes, Mapping) else None for kind in (FULL, SLIDING))
    if not isinstance(full, Mapping) or not isinstance(local, Mapping | None):
        what = f"rope_parameters {shown(ropes)} must be those of {FULL} and {SLIDING}"
        raise UnsupportedModel(f"{values.where}: {what}")
    local = local or {}
    if (rope_type := local.get("rope_type", "default")) != "default":
        what = f"rope_type {shown(rope_type)} of layers with a window is not supported"
        raise UnsupportedModel(f"{values.where}: {what}")
    beside = {LOCAL_THETA: local.get("rope_theta"), LOCAL_SHARE: local.get(PARTIAL)}
    return values.updated({"rope_parameters": full, **beside})


def layer_types_json(config: ModelConfig) -> dict[str, Any]:
    """Return the types of attention and of the feed-forward block of each layer."""
    experts = config.experts
    mlp_types = ["sparse" if experts and experts.at(layer) else "dense" for layer in range(config.layers)]
    return {"layer_types": layer_types_of(config), "mlp_layer_types": mlp_types}


def rope_by_layer_type_json(config: ModelConfig, local_rotary: int | None = None) -> dict[str, Any]:
    """Return the rotary parameters of both types of attention; they are YaRN's or not scaled.

    local_rotary   the rotated numbers of a head in layers with a window; None: config.json does not give them
    """
    full: dict[str, Any] = {"rope_type": "default"}
    if isinstance(scaling := config.rope_scaling, YarnScaling):
        full = {"rope_type": "yarn", **{key: getattr(scaling, key) for key in YARN_KEYS}}
        full |= {HF_ORIGINAL: scaling.original, "attention_factor": scaling.attention}
    full["rope_theta"] = config.rope_theta
    sliding = {"rope_type": "default", "rope_theta": config.local_theta or config.rope_theta}
    if local_rotary is not None:
        full[PARTIAL] = config.rotary / config.head_dim
    if local_rotary:
        sliding[PARTIAL] = local_rotary / config.head_dim
    return {"rope_parameters": {FULL: full, SLIDING: sliding}, "rope_scaling": None}
