"""config.json of models with two types of layers and rotary parameters for each type."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.hf_windows import list_attention_types
from sporelm.checkpoints.rope_fields import HF_ORIGINAL, PARTIAL
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import YarnScaling

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
# Our keys for the rotary parameters of layers with a window.
LOCAL_THETA: Final = "local_theta"
LOCAL_SHARE: Final = "local_share"
YARN_KEYS: Final = ("factor", "beta_fast", "beta_slow", "truncate")


def with_rope_of_types(values: ConfigValues, ropes: Any) -> ConfigValues:
    """Return the values with the rotary parameters of full-attention layers; those of sliding-window layers are under
    keys of ours.

    ropes   by type of layers

    Raises UnsupportedModel for other types of layers, or if the parameters of sliding-window layers are scaled.
    """
    full, local = (ropes.get(kind) if isinstance(ropes, Mapping) else None for kind in (FULL, SLIDING))
    if not isinstance(full, Mapping) or not isinstance(local, Mapping | None):
        what = f"rope_parameters {format_value(ropes)} must be those of {FULL} and {SLIDING}"
        raise UnsupportedModel(f"{values.where}: {what}")
    local = local or {}
    if (rope_type := local.get("rope_type", "default")) != "default":
        what = f"rope_type {format_value(rope_type)} of layers with a window is not supported"
        raise UnsupportedModel(f"{values.where}: {what}")
    local_values = {LOCAL_THETA: local.get("rope_theta"), LOCAL_SHARE: local.get(PARTIAL)}
    return values.with_changes({"rope_parameters": full, **local_values})


def layer_types_json(config: ModelConfig) -> dict[str, Any]:
    """Return the types of attention and of the feed-forward block of each layer."""
    experts = config.experts
    mlp_types = ["sparse" if experts and experts.at(layer) else "dense" for layer in range(config.layers)]
    return {"layer_types": list_attention_types(config), "mlp_layer_types": mlp_types}


def rope_by_layer_type_json(config: ModelConfig, local_rotary: int | None = None) -> dict[str, Any]:
    """Return the rotary parameters of both types of layers, YaRN or unscaled.

    local_rotary   rotated dimensions of a head in layers with a window; None: config.json does not contain them
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
