"""Rotary positions in GGUF metadata and in config.json, from the one record that both are read into.

What neither has a word for is written as divisors of the frequencies: GGUF as rope_freqs.weight, Hugging Face as the
factors of "longrope". Keys: as in `weights.rope_fields`, which reads them.
"""

from collections.abc import Mapping
from math import pi
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.rope_fields import FACTORS, LONG_FACTORS, SHORT_FACTORS, magnitude
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
LIKE = 3e-6  # relative difference up to which divisors are the same: float32, computed in another order
DIGITS = 6  # of Llama 3's parameters, which are round numbers


class GgufRope(NamedTuple):
    """Keys without the architecture -> (kind, value); tensors by name; and what cannot be said."""

    fields: dict[str, tuple[str, Any]]
    tensors: dict[str, Vector]
    notes: tuple[str, ...] = ()

    @property
    def yarn_bounds(self) -> tuple[float, float] | None:
        """beta_fast and beta_slow, if the fields describe YaRN by them."""
        keys = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
        return (self.fields[keys[0]][1], self.fields[keys[1]][1]) if keys[0] in self.fields else None


def gguf_rope(config: ModelConfig, positions: int, *, truncates: bool = True) -> GgufRope:
    """The rotary fields of a configuration; `positions` is what its file calls the number of positions, `truncates`
    what GGUF files of its family mean by YaRN (`Family.yarn_truncates`)."""
    scaling = config.rope_scaling
    fields: dict[str, tuple[str, Any]] = {"context_length": ("u32", positions)}
    if not config.rotary:
        return GgufRope(fields, {})
    fields["rope.freq_base"] = "f32", config.rope_theta
    match scaling:
        case LinearScaling():
            more: dict[str, Any] = {"type": "linear", "factor": scaling.factor}
            more["original_context_length"] = scaling.original or positions
        case YarnScaling() if scaling.truncate == truncates and not scaling.divisors:
            more = {"type": "yarn", "factor": scaling.factor, "original_context_length": scaling.original}
            more |= {"yarn_beta_fast": scaling.beta_fast, "yarn_beta_slow": scaling.beta_slow}
            if scaling.extrapolation != 1:
                more["yarn_ext_factor"] = scaling.extrapolation
            # llama.cpp multiplies by YaRN's usual factor itself, and heeds this key alone.
            usual = magnitude(scaling.factor) if scaling.extrapolation else 1.0
            return GgufRope(fields | _keys(more | _attention(scaling.attention / usual)), {})
        case YarnScaling():
            fields["context_length"] = ("u32", config.context_length)
            return GgufRope(fields | _keys(_attention(scaling.attention)), {FACTORS: _divisors(config)})
        case LongRopeScaling():
            more = {"type": "longrope", "original_context_length": scaling.original}
            tensors = {
                SHORT_FACTORS: np.array(scaling.short, np.float32),
                LONG_FACTORS: np.array(scaling.long, np.float32),
            }
            return GgufRope(fields | _keys(more | _attention(scaling.attention)), tensors)
        case Llama3Scaling():
            more = {"original_context_length": scaling.original} | _attention(scaling.attention)
            return GgufRope(fields | _keys(more), {FACTORS: _divisors(config)})
        case DynamicNtkScaling():
            note = f"dynamic rope scaling is left out: GGUF files have no word for it; good up to {positions} positions"
            return GgufRope(fields, {}, (note,))
        case _:
            more = {}
    tensors = {FACTORS: np.array(scaling.divisors, np.float32)} if scaling.divisors else {}
    return GgufRope(fields | _keys(more | _attention(scaling.attention)), tensors)


def _attention(factor: float) -> dict[str, Any]:
    return {} if abs(factor - 1) < 1e-9 else {"attn_factor": factor}


def _keys(values: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Each value under its key and with its kind."""
    kinds = {str: "str", int: "u32", float: "f32"}
    return {f"rope.scaling.{key}": (kinds[type(value)], value) for key, value in values.items()}


def _divisors(config: ModelConfig, scaling: RopeScaling | None = None) -> Vector:
    """float32 [head_dim / 2]: by which each frequency differs from theta ** (-2 i / head_dim)."""
    given = config.rope_scaling if scaling is None else scaling
    arguments = config.context_length, config.rotary, config.rope_theta
    return (frequencies(*arguments, UNSCALED) / frequencies(*arguments, given)).astype(np.float32)


def hf_rope(config: ModelConfig, original: int | None, *, gained: bool = False) -> dict[str, Any]:
    """The rotary fields of config.json; `original` is the context before scaling where the GGUF file says it, `gained`
    whether the number of positions counts what linear scaling gains (`Family.counts_gained`)."""
    scaling = config.rope_scaling
    found: dict[str, Any] = {
        "max_position_embeddings": config.context_length,
        "rope_theta": number(config.rope_theta),
        "rope_scaling": None,
    }
    plain = scaling.attention == 1 and not scaling.divisors
    match scaling:
        case LinearScaling() if plain:
            if not gained:
                before = scaling.original or max(1, round(config.context_length / scaling.factor))
                found["max_position_embeddings"] = before
            found["rope_scaling"] = {"rope_type": "linear", "factor": number(scaling.factor)}
        case YarnScaling() if scaling.extrapolation == 1 and not scaling.divisors:
            found["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": number(scaling.factor),
                "original_max_position_embeddings": scaling.original,
                "beta_fast": number(scaling.beta_fast),
                "beta_slow": number(scaling.beta_slow),
                "attention_factor": number(scaling.attention),
                **({} if scaling.truncate else {"truncate": False}),
            }
        case LongRopeScaling() if not scaling.divisors:
            found["rope_scaling"] = _longrope(scaling.short, scaling.long, scaling.original, scaling.attention)
        case _ if plain and scaling == UNSCALED:
            pass
        case _:
            llama3 = _llama3(config, original) if scaling.attention == 1 else None
            divisors = _divisors(config).tolist()
            found["rope_scaling"] = llama3 or _longrope(divisors, divisors, config.context_length, scaling.attention)
    return found


def _longrope(short: Any, long: Any, original: int, attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [number(value) for value in short],
        "long_factor": [number(value) for value in long],
        "original_max_position_embeddings": original,
        "attention_factor": number(attention),
    }


def _llama3(config: ModelConfig, original: int | None) -> dict[str, Any] | None:
    """The parameters of Llama 3's scaling that give these divisors; None if none do.

    Between its two bounds 1 / divisor is linear in the frequency; slope and intercept give the bounds. They and the
    original context are known up to a common factor only, so that context is the file's, or Llama 3's.
    """
    if type(config.rope_scaling) is not RopeScaling:
        return None
    divisors = np.array(config.rope_scaling.divisors)
    factor = float(divisors.max())
    context = original or 8192
    rates = frequencies(config.context_length, config.rotary, config.rope_theta, UNSCALED)
    between = (divisors > 1 + LIKE) & (divisors < factor * (1 - LIKE))
    bounds = [(1.0, 4.0)]
    if factor > 1 and np.count_nonzero(between) > 1:
        kept = (1 / divisors[between] - 1 / factor) / (1 - 1 / factor)
        slope, intercept = np.polyfit(context * rates[between] / (2 * pi), kept, 1)
        if slope > 0:
            low = -intercept / slope
            bounds.append((_round(low), _round(low + 1 / slope)))
    for low, high in bounds:
        if 0 < low < high:
            made = Llama3Scaling(factor=_round(factor), original=context, low=low, high=high)
            if np.allclose(_divisors(config, made), divisors, rtol=LIKE, atol=0):
                return {
                    "rope_type": "llama3",
                    "factor": made.factor,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": context,
                }
    return None


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def number(value: float) -> float:
    """A number that came through float32, as the shortest decimal that float32 reads back: 1e-05, not 9.99...e-06."""
    return float(str(np.float32(value)))
