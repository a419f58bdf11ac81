"""Rotary positions of two kinds of layers: those with a window turn whole heads by a base of their own, the others a
share of each head, at the frequencies of all of it (transformers' "proportional")."""

from collections.abc import Mapping
from typing import Any

from sporelm.checkpoints.fields import Fields
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import UNSCALED, RopeScaling

FULL, LOCAL = "full_attention", "sliding_attention"
LOCAL_THETA, SHARE = "rope_local_base_freq", "proportion"  # ours, for words of config.json
UNTURNED = 1e30  # the divisor of a frequency that turns nothing, as llama.cpp's converter writes it


def of_kinds(kinds: Any) -> dict[str, Any]:
    """The rotary bases of both kinds of layers, and how much of a head the wide ones turn; nothing where they have
    other words, which are refused as they stand."""
    full, local = (kinds.get(kind) if isinstance(kinds, Mapping) else None for kind in (FULL, LOCAL))
    if not isinstance(full, Mapping) or not isinstance(local, Mapping):
        return {}
    known = full.keys() <= {"rope_type", "rope_theta", "partial_rotary_factor"}
    if not known or full.get("rope_type") != "proportional" or local.get("rope_type", "default") != "default":
        return {}
    found = {"rope_parameters": {"rope_theta": full.get("rope_theta", 1e6)}, LOCAL_THETA: local.get("rope_theta")}
    return {**found, SHARE: full.get("partial_rotary_factor", 1.0)}


def turning(config: ModelConfig, values: Fields) -> RopeScaling:
    """The share of a head that turns, as divisors of its frequencies."""
    half, turned = config.head_dim // 2, int(values.number(SHARE, 0.0, 1.0, 1.0) * config.head_dim // 2)
    divisors = (1.0,) * turned + (UNTURNED,) * (half - turned)
    return RopeScaling(divisors=divisors) if turned < half else UNSCALED


def kinds_words(config: ModelConfig) -> dict[str, Any]:
    """The rotary parameters of a config.json."""
    turned = sum(each < UNTURNED / 2 for each in config.rope_scaling.divisors)
    share = 2 * turned / config.head_dim if config.rope_scaling.divisors else 1.0
    full = {"rope_type": "proportional", "rope_theta": config.rope_theta, "partial_rotary_factor": share}
    return {"rope_parameters": {FULL: full, LOCAL: {"rope_type": "default", "rope_theta": config.local_theta}}}
