"""Rotary parameters of config.json for two types of layers.

Layers with a window rotate whole heads with a base of their own. The others rotate a part of each head at the
frequencies of a whole one ("proportional" in transformers).
"""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import UNSCALED, RopeScaling

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
LOCAL_THETA_KEY: Final = "rope_local_base_freq"  # ours, for the base of layers with a window
PROPORTION_KEY: Final = "proportion"  # ours, for the part of a head that the other layers rotate
UNROTATED: Final = 1e30  # divisor of the frequencies of unrotated dimensions, as llama.cpp's converter writes it
FULL_KEYS: Final = frozenset({"rope_type", "rope_theta", "partial_rotary_factor"})


def flatten_rope(rope_parameters: Any) -> dict[str, Any]:
    """Return the bases and the proportion under keys of ours, from the rotary parameters by layer type. Return no keys
    for other parameters, which are rejected later."""
    full, sliding = (
        rope_parameters.get(kind) if isinstance(rope_parameters, Mapping) else None for kind in (FULL, SLIDING)
    )
    if not isinstance(full, Mapping) or not isinstance(sliding, Mapping) or not full.keys() <= FULL_KEYS:
        return {}
    if full.get("rope_type") != "proportional" or sliding.get("rope_type", "default") != "default":
        return {}
    return {
        "rope_parameters": {"rope_theta": full.get("rope_theta", 1e6)},
        LOCAL_THETA_KEY: sliding.get("rope_theta"),
        PROPORTION_KEY: full.get("partial_rotary_factor", 1.0),
    }


def read_proportion(config: ModelConfig, values: ConfigValues) -> RopeScaling:
    """Return the scaling that leaves the unrotated part of a head in place: divisors of its frequencies."""
    half = config.head_dim // 2
    rotated = int(values.number(PROPORTION_KEY, 0.0, 1.0, 1.0) * config.head_dim // 2)
    divisors = (1.0,) * rotated + (UNROTATED,) * (half - rotated)
    return RopeScaling(divisors=divisors) if rotated < half else UNSCALED


def rope_by_type_json(config: ModelConfig) -> dict[str, Any]:
    """Return the rotary parameters of a config.json."""
    rotated = sum(each < UNROTATED / 2 for each in config.rope_scaling.divisors)
    factor = 2 * rotated / config.head_dim if config.rope_scaling.divisors else 1.0
    full = {"rope_type": "proportional", "rope_theta": config.rope_theta, "partial_rotary_factor": factor}
    sliding = {"rope_type": "default", "rope_theta": config.local_theta}
    return {"rope_parameters": {FULL: full, SLIDING: sliding}}
