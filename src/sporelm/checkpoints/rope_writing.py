"""Writes rotary positions as GGUF metadata and as config.json.

Scaling that a format has no type for is written as divisors of the frequencies: in GGUF as rope_freqs.weight, in
Hugging Face as the factors of "longrope". `rope_fields` reads the same keys.
"""

from collections.abc import Mapping
from math import pi
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.rope_fields import FACTORS, LONG_FACTORS, SHORT_FACTORS, compute_mscale
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import (
    UNSCALED,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from sporelm.models.rotary import frequencies

Vector = NDArray[np.float32]
DIVISOR_TOLERANCE = 3e-6  # relative; float32 values computed in another order differ by less
DIGITS = 6  # significant digits of Llama 3's parameters, which are round numbers


class GgufRope(NamedTuple):
    """Keys without the architecture -> (type, value); tensors by name; and notes about values that cannot be
    written."""

    fields: dict[str, tuple[str, Any]]
    tensors: dict[str, Vector]
    notes: tuple[str, ...] = ()

    @property
    def yarn_bounds(self) -> tuple[float, float] | None:
        """beta_fast and beta_slow, if the fields describe YaRN by them."""
        keys = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
        return (self.fields[keys[0]][1], self.fields[keys[1]][1]) if keys[0] in self.fields else None


def rope_to_gguf(config: ModelConfig, positions: int, *, yarn_truncates: bool = True) -> GgufRope:
    """Return the rotary fields of a configuration.

    positions        the number of positions in the source file
    yarn_truncates   the rounding of YaRN's ramp that GGUF files of the architecture imply (`GgufSchema.yarn_truncates`)
    """
    scaling = config.rope_scaling
    fields: dict[str, tuple[str, Any]] = {"context_length": ("u32", positions)}
    if not config.rotary:
        return GgufRope(fields, {})
    fields["rope.freq_base"] = "f32", config.rope_theta
    match scaling:
        case LinearScaling():
            more: dict[str, Any] = {"type": "linear", "factor": scaling.factor}
            more["original_context_length"] = scaling.original or positions
        case YarnScaling() if scaling.truncate == yarn_truncates and not scaling.divisors:
            more = {"type": "yarn", "factor": scaling.factor, "original_context_length": scaling.original}
            more |= {"yarn_beta_fast": scaling.beta_fast, "yarn_beta_slow": scaling.beta_slow}
            if scaling.extrapolation != 1:
                more["yarn_ext_factor"] = scaling.extrapolation
            # llama.cpp multiplies by YaRN's usual factor itself, and reads no key but this one.
            usual = compute_mscale(scaling.factor) if scaling.extrapolation else 1.0
            return GgufRope(fields | _to_entries(more | _attention_factor(scaling.attention / usual)), {})
        case YarnScaling():
            fields["context_length"] = ("u32", config.context_length)
            return GgufRope(
                fields | _to_entries(_attention_factor(scaling.attention)), {FACTORS: _compute_divisors(config)}
            )
        case LongRopeScaling():
            more = {"type": "longrope", "original_context_length": scaling.original}
            tensors = {
                SHORT_FACTORS: np.array(scaling.short, np.float32),
                LONG_FACTORS: np.array(scaling.long, np.float32),
            }
            return GgufRope(fields | _to_entries(more | _attention_factor(scaling.attention)), tensors)
        case Llama3Scaling():
            more = {"original_context_length": scaling.original} | _attention_factor(scaling.attention)
            return GgufRope(fields | _to_entries(more), {FACTORS: _compute_divisors(config)})
        case DynamicNtkScaling():
            note = f"dynamic rope scaling is dropped: GGUF has no key for it. Use at most {positions} positions"
            return GgufRope(fields, {}, (note,))
        case _:
            more = {}
    tensors = {FACTORS: np.array(scaling.divisors, np.float32)} if scaling.divisors else {}
    return GgufRope(fields | _to_entries(more | _attention_factor(scaling.attention)), tensors)


def _attention_factor(factor: float) -> dict[str, Any]:
    return {} if abs(factor - 1) < 1e-9 else {"attn_factor": factor}


def _to_entries(values: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return each value under its full key and with its type."""
    types = {str: "str", int: "u32", float: "f32"}
    return {f"rope.scaling.{key}": (types[type(value)], value) for key, value in values.items()}


def _compute_divisors(config: ModelConfig, scaling: RopeScaling | None = None) -> Vector:
    """Return float32 [head_dim / 2]: the ratio of each frequency theta ** (-2 i / head_dim) to the scaled one."""
    given = config.rope_scaling if scaling is None else scaling
    arguments = config.context_length, config.rotary, config.rope_theta
    return (frequencies(*arguments, UNSCALED) / frequencies(*arguments, given)).astype(np.float32)


def rope_to_hf(config: ModelConfig, original: int | None, *, counts_scaled_positions: bool = False) -> dict[str, Any]:
    """Return the rotary fields of config.json.

    original                   positions before scaling, if the GGUF file has them
    counts_scaled_positions    the number of positions includes the ones that linear scaling adds
                               (`HfSchema.counts_scaled_positions`)
    """
    scaling = config.rope_scaling
    found: dict[str, Any] = {
        "max_position_embeddings": config.context_length,
        "rope_theta": to_shortest_float(config.rope_theta),
        "rope_scaling": None,
    }
    is_plain = scaling.attention == 1 and not scaling.divisors
    match scaling:
        case LinearScaling() if is_plain:
            if not counts_scaled_positions:
                before = scaling.original or max(1, round(config.context_length / scaling.factor))
                found["max_position_embeddings"] = before
            found["rope_scaling"] = {"rope_type": "linear", "factor": to_shortest_float(scaling.factor)}
        case YarnScaling() if scaling.extrapolation == 1 and not scaling.divisors:
            found["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": to_shortest_float(scaling.factor),
                "original_max_position_embeddings": scaling.original,
                "beta_fast": to_shortest_float(scaling.beta_fast),
                "beta_slow": to_shortest_float(scaling.beta_slow),
                "attention_factor": to_shortest_float(scaling.attention),
                **({} if scaling.truncate else {"truncate": False}),
            }
        case LongRopeScaling() if not scaling.divisors:
            found["rope_scaling"] = _longrope_json(scaling.short, scaling.long, scaling.original, scaling.attention)
        case _ if is_plain and scaling == UNSCALED:
            pass
        case _:
            llama3 = _fit_llama3(config, original) if scaling.attention == 1 else None
            divisors = _compute_divisors(config).tolist()
            found["rope_scaling"] = llama3 or _longrope_json(
                divisors, divisors, config.context_length, scaling.attention
            )
    return found


def _longrope_json(short: Any, long: Any, original: int, attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [to_shortest_float(value) for value in short],
        "long_factor": [to_shortest_float(value) for value in long],
        "original_max_position_embeddings": original,
        "attention_factor": to_shortest_float(attention),
    }


def _fit_llama3(config: ModelConfig, original: int | None) -> dict[str, Any] | None:
    """Return the parameters of Llama 3's scaling that produce these divisors; None if no parameters do.

    Between its two bounds 1 / divisor is linear in the frequency; slope and intercept give the bounds. They and the
    original context are determined only up to a common factor, so the context is the file's, or Llama 3's.
    """
    if type(config.rope_scaling) is not RopeScaling:
        return None
    divisors = np.array(config.rope_scaling.divisors)
    factor = float(divisors.max())
    context = original or 8192
    rates = frequencies(config.context_length, config.rotary, config.rope_theta, UNSCALED)
    between = (divisors > 1 + DIVISOR_TOLERANCE) & (divisors < factor * (1 - DIVISOR_TOLERANCE))
    bounds = [(1.0, 4.0)]
    if factor > 1 and np.count_nonzero(between) > 1:
        ratios = (1 / divisors[between] - 1 / factor) / (1 - 1 / factor)
        slope, intercept = np.polyfit(context * rates[between] / (2 * pi), ratios, 1)
        if slope > 0:
            low = -intercept / slope
            bounds.append((_round(low), _round(low + 1 / slope)))
    for low, high in bounds:
        if 0 < low < high:
            candidate = Llama3Scaling(factor=_round(factor), original=context, low=low, high=high)
            if np.allclose(_compute_divisors(config, candidate), divisors, rtol=DIVISOR_TOLERANCE, atol=0):
                return {
                    "rope_type": "llama3",
                    "factor": candidate.factor,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": context,
                }
    return None


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def to_shortest_float(value: float) -> float:
    """Return the shortest decimal that float32 reads as this value: 1e-05, not 9.99...e-06."""
    return float(str(np.float32(value)))
