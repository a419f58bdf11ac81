"""Reads the rotary base and its scaling from GGUF metadata and from config.json, every value checked.

Hugging Face: `rope_scaling` (transformers 4) or `rope_parameters` (5), with the meanings and defaults of transformers'
modeling_rope_utils. GGUF: the keys `rope.*` of the specification and the tensors of factors, as llama.cpp reads them.
The `yarn_*` keys apply to every architecture, with the meaning that llama.cpp's converter gives them.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.rope_scaling import (
    UNSCALED,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)

MAX_CONTEXT = 1 << 26
MIN_FACTOR, MAX_FACTOR = 1e-3, 1e6  # of positions, frequencies and attention alike
MAX_DIVISOR = 1e31  # of a frequency; Gemma 4's files have 1e30 for unrotated dimensions
MIN_TURNS, MAX_TURNS = 1e-3, 1e6
DEFAULT_THETA, MAX_THETA = 10000.0, 1e12
FACTORS = "rope_freqs.weight"  # GGUF tensor of the divisors of frequencies, as in files of Llama 3
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"  # the same for LongRoPE
FACTOR_TENSORS = (FACTORS, SHORT_FACTORS, LONG_FACTORS)
HF_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
GGUF_KINDS = ("none", "linear", "yarn", "longrope")
PARTIAL = "partial_rotary_factor"
HF_ORIGINAL = "original_max_position_embeddings"
HF_KEYS = (
    *("rope_type", "type", "rope_theta", PARTIAL, "factor", HF_ORIGINAL),
    *("low_freq_factor", "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim"),
    *("beta_fast", "beta_slow", "truncate", "short_factor", "long_factor", "finetuned"),
)
GGUF_KEYS = (
    *("type", "factor", "original_context_length", "finetuned", "attn_factor", "yarn_ext_factor"),
    *("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier"),
)


class Rope(NamedTuple):
    """Rotary positions as a file describes them."""

    theta: float
    scaling: RopeScaling
    context_length: int  # supported positions, including the ones that scaling adds
    rotary: int = 0  # rotated dimensions of a head


def rope_from_hf(
    fields: ConfigValues,
    head_dim: int,
    context_length: int,
    *,
    allows_partial: bool = False,
    counts_scaled_positions: bool = False,
) -> Rope:
    """Return the rotary values of a config.json.

    context_length             max_position_embeddings
    allows_partial             the file may rotate only a part of each head
    counts_scaled_positions    `context_length` includes the positions that linear scaling adds

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for an unsupported type or parameter.
    """
    inner = _read_hf_parameters(fields)
    theta = (inner if inner.has("rope_theta") else fields).number("rope_theta", 1.0, MAX_THETA, DEFAULT_THETA)
    kind = inner.values.get("rope_type", inner.values.get("type", "default"))
    if kind not in HF_KINDS:
        raise UnsupportedModel(
            f"{fields.where}: rope type {format_value(kind)} is not supported: {', '.join(HF_KINDS)} are"
        )
    rotary = _read_hf_rotary(inner if inner.has(PARTIAL) else fields, head_dim, allows_partial)
    scaling = _read_hf_scaling(str(kind), inner, rotary, context_length)
    if counts_scaled_positions and isinstance(scaling, LinearScaling):
        scaling = replace(scaling, original=max(1, round(context_length / scaling.factor)))
    return _check_rope(Rope(theta, scaling, context_length, rotary), rotary, fields.where)


def rope_from_gguf(
    fields: ConfigValues, factor_tensors: Mapping[str, tuple[float, ...]], head_dim: int, context_length: int
) -> Rope:
    """Return the rotary values of GGUF metadata.

    fields           keys without the architecture
    factor_tensors   values of the tensors of factors, by name

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for an unsupported type or key.
    """
    prefix = "rope.scaling."
    keys = {key.removeprefix(prefix): None for key in fields.values if key.startswith(prefix)}
    ConfigValues(keys, fields.where).reject_unknown(GGUF_KEYS, "rope.scaling key")
    theta = fields.number("rope.freq_base", 1.0, MAX_THETA, DEFAULT_THETA)
    factor_key = "rope.scaling.factor" if fields.has("rope.scaling.factor") else "rope.scale_linear"
    default_kind = "longrope" if SHORT_FACTORS in factor_tensors else "linear" if fields.has(factor_key) else "none"
    kind = fields.text("rope.scaling.type", default_kind)  # llama.cpp's converter omits it for Phi-3 and MiniCPM3
    if kind not in GGUF_KINDS:
        known = ", ".join(GGUF_KINDS)
        raise UnsupportedModel(f"{fields.where}: rope.scaling.type {format_value(kind)} is not supported: {known} are")
    lists = {
        name: ConfigValues(factor_tensors, fields.where).numbers(name, head_dim // 2, MIN_FACTOR, MAX_DIVISOR)
        for name in factor_tensors
    }
    if set(lists.get(FACTORS, ())) == {1.0}:
        del lists[FACTORS]
    if kind != "longrope" and (SHORT_FACTORS in lists or LONG_FACTORS in lists):
        raise ModelFileError(f"{fields.where}: it has the tensors of longrope, but rope.scaling.type is {kind!r}")
    scaling = _read_gguf_scaling(kind, fields, factor_key, lists, context_length)
    return _check_rope(Rope(theta, scaling, context_length), head_dim, fields.where)


def _read_hf_parameters(fields: ConfigValues) -> ConfigValues:
    """Return the object of rotary parameters; an empty one without it."""
    objects = [fields.values.get(key) for key in ("rope_scaling", "rope_parameters")]
    given = [value for value in objects if value not in (None, {})]
    for value in given:
        if not isinstance(value, Mapping):
            raise ModelFileError(f"{fields.where}: rope parameters must be an object (got {format_value(value)})")
    if len(given) == 2 and given[0] != given[1]:
        raise ModelFileError(f"{fields.where}: rope_scaling and rope_parameters differ. Remove one of them")
    inner = ConfigValues(given[0] if given else {}, fields.where)
    inner.reject_unknown(HF_KEYS, "rope parameter")
    if fields.has(HF_ORIGINAL):  # outside the object, as in Phi-3: takes precedence in transformers too
        return ConfigValues({**inner.values, HF_ORIGINAL: fields.values[HF_ORIGINAL]}, fields.where)
    return inner


def _read_hf_rotary(holder: ConfigValues, head_dim: int, allows_partial: bool) -> int:
    """Return the number of rotated dimensions of a head; all of them by default.

    transformers rounds an odd number up but keeps it in the exponents of the frequencies, so it is rejected.
    """
    if not holder.has(PARTIAL):
        return head_dim
    share = holder.number(PARTIAL, 0.0, 1.0)
    if share != 1 and not allows_partial:
        raise UnsupportedModel(f"{holder.where}: {PARTIAL} is {share:g}; only 1 is supported")
    rotary = int(head_dim * share)
    if rotary < 2 or (rotary != head_dim and rotary % 2):
        what = f"cannot rotate {rotary} of a head's {head_dim} dimensions"
        raise ModelFileError(f"{holder.where}: {what}; they must be pairs ({PARTIAL} is {share:g})")
    return rotary


def _read_hf_scaling(kind: str, inner: ConfigValues, head_dim: int, context_length: int) -> RopeScaling:
    if kind == "default":
        return UNSCALED
    if kind == "linear":
        return LinearScaling(factor=_read_factor(inner, "factor"), original=context_length)
    if kind == "dynamic":
        return DynamicNtkScaling(factor=_read_factor(inner, "factor"), original=context_length)
    original = inner.integer(HF_ORIGINAL, 2, MAX_CONTEXT)
    if kind == "yarn":
        factor = _read_factor(inner, "factor", context_length / original)
        mscales = [inner.number(key, 0.0, MAX_FACTOR, 0.0) for key in ("mscale", "mscale_all_dim")]
        usual = compute_mscale(factor, mscales[0]) / compute_mscale(factor, mscales[1]) if all(mscales) else None
        return YarnScaling(
            factor=factor,
            original=original,
            beta_fast=_read_turns(inner, "beta_fast", 32.0),
            beta_slow=_read_turns(inner, "beta_slow", 1.0),
            truncate=inner.flag("truncate", True),
            attention=_read_factor(inner, "attention_factor", usual or compute_mscale(factor)),
        )
    if kind == "llama3":
        low, high = (inner.number(f"{end}_freq_factor", MIN_FACTOR, MAX_FACTOR) for end in ("low", "high"))
        return Llama3Scaling(factor=_read_factor(inner, "factor"), original=original, low=low, high=high)
    stretch = _read_factor(inner, "factor", context_length / original)
    return LongRopeScaling(
        short=inner.numbers("short_factor", head_dim // 2, MIN_FACTOR, MAX_FACTOR),
        long=inner.numbers("long_factor", head_dim // 2, MIN_FACTOR, MAX_FACTOR),
        original=original,
        attention=_read_factor(inner, "attention_factor", sqrt(1 + log(max(stretch, 1.0)) / log(original))),
    )


def _read_gguf_scaling(
    kind: str, fields: ConfigValues, factor_key: str, lists: Mapping[str, tuple[float, ...]], context_length: int
) -> RopeScaling:
    divisors, attention = lists.get(FACTORS, ()), _read_factor(fields, "rope.scaling.attn_factor", 1.0)
    if kind == "none":
        return RopeScaling(divisors=divisors, attention=attention)
    original_key = "rope.scaling.original_context_length"
    if kind == "linear":
        original = fields.integer(original_key, 1, MAX_CONTEXT) if fields.has(original_key) else 0
        factor = _read_factor(fields, factor_key)
        if factor == 1:
            return RopeScaling(divisors=divisors, attention=attention)
        return LinearScaling(factor=factor, original=original, divisors=divisors, attention=attention)
    original = fields.integer(original_key, 2, MAX_CONTEXT, context_length if kind == "longrope" else None)
    if kind == "yarn":
        return _read_gguf_yarn(fields, _read_factor(fields, factor_key), original, divisors, attention)
    if divisors or (fields.has(factor_key) and _read_factor(fields, factor_key) != 1):
        what = FACTORS if divisors else factor_key
        raise UnsupportedModel(f"{fields.where}: longrope together with {what} is not supported")
    for name in (SHORT_FACTORS, LONG_FACTORS):
        if name not in lists:
            raise ModelFileError(f"{fields.where}: rope.scaling.type is 'longrope', but tensor {name} is missing")
    return LongRopeScaling(short=lists[SHORT_FACTORS], long=lists[LONG_FACTORS], original=original, attention=attention)


def _read_gguf_yarn(
    fields: ConfigValues, factor: float, original: int, divisors: tuple[float, ...], attention: float
) -> RopeScaling:
    """Return YaRN of GGUF keys. `yarn_attn_factor` has the value of transformers' attention_factor."""
    extrapolation = fields.number("rope.scaling.yarn_ext_factor", 0.0, 1.0, 1.0)
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0, MAX_FACTOR, 0.0)
    usual = compute_mscale(factor) / (compute_mscale(factor, multiplier) if multiplier else 1.0)
    if extrapolation == 0:
        usual = 1.0  # llama.cpp: without the ramp this is linear scaling, which does not change the magnitude
    return YarnScaling(
        factor=factor,
        original=original,
        beta_fast=_read_turns(fields, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=_read_turns(fields, "rope.scaling.yarn_beta_slow", 1.0),
        extrapolation=extrapolation,
        divisors=divisors,
        attention=attention * _read_factor(fields, "rope.scaling.yarn_attn_factor", usual),
    )


def _read_factor(fields: ConfigValues, key: str, default: float | None = None) -> float:
    return fields.number(key, MIN_FACTOR, MAX_FACTOR, default)


def _read_turns(fields: ConfigValues, key: str, default: float) -> float:
    """Return the rotations over the original context at an end of the ramp; 0 means the default, as in transformers."""
    value = fields.number(key, 0.0, MAX_TURNS, default) or default
    return ConfigValues({key: value}, fields.where).number(key, MIN_TURNS, MAX_TURNS)


def compute_mscale(factor: float, weight: float = 1.0) -> float:
    """Return the factor by which YaRN scales cosines and sines (Peng et al. 2023, equation 22, as in its authors'
    code)."""
    return 1.0 + 0.1 * weight * log(factor) if factor > 1 else 1.0


def _check_rope(rope: Rope, head_dim: int, where: str) -> Rope:
    """Return the values with the context length that scaling allows. Raises ModelFileError for values that contradict
    each other."""
    scaling: Any = rope.scaling
    if isinstance(scaling, YarnScaling) and scaling.beta_fast < scaling.beta_slow:
        raise ModelFileError(f"{where}: beta_fast {scaling.beta_fast:g} is below beta_slow {scaling.beta_slow:g}")
    if isinstance(scaling, YarnScaling) and rope.theta <= 1:
        raise ModelFileError(f"{where}: a rotary base of {rope.theta:g} has no fast and slow frequencies for yarn")
    if isinstance(scaling, DynamicNtkScaling) and head_dim <= 2:
        raise ModelFileError(f"{where}: dynamic rope scaling needs heads of at least 4 dimensions (got {head_dim})")
    if isinstance(scaling, Llama3Scaling) and scaling.high < scaling.low:
        what = f"high_freq_factor {scaling.high:g} is below low_freq_factor {scaling.low:g}"
        raise ModelFileError(f"{where}: {what}")
    return rope._replace(context_length=min(max(rope.context_length, scaling.extended_context), MAX_CONTEXT))
