"""config.json where layers are of two types: what it says of each layer, and the rotary parameters of each type."""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints import hf_layer_types
from sporelm.checkpoints.fields import shown
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig

FULL, LOCAL = hf_layer_types.FULL, hf_layer_types.SLIDING
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


lists = hf_layer_types.layer_types_json


def words(config: ModelConfig, local_rotary: int | None = None) -> dict[str, Any]:
    return {**lists(config), **hf_layer_types.rope_by_layer_type_json(config, local_rotary)}
