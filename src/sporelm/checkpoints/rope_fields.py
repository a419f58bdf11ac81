"""Reads the rotary base and its scaling from GGUF metadata and from config.json, every value checked.

Hugging Face: `rope_scaling` (transformers 4) or `rope_parameters` (5), meanings and defaults as in transformers'
modeling_rope_utils. GGUF: the keys `rope.*` of the specification and the tensors of factors, as llama.cpp reads them;
the `yarn_*` keys count for every architecture, and as what llama.cpp's converter writes into them.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import ConfigValues, shown
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
MAX_DIVISOR = 1e31  # of a frequency; Gemma 4's files have 1e30 where nothing turns
MIN_TURNS, MAX_TURNS = 1e-3, 1e6
DEFAULT_THETA, MAX_THETA = 10000.0, 1e12
FACTORS = "rope_freqs.weight"  # a GGUF tensor: each frequency's divisor; Llama 3 files come with it
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"  # the same, of LongRoPE
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
    """What a file says about rotary positions."""

    theta: float
    scaling: RopeScaling
    context_length: int  # positions that the model may be used for, those gained by scaling included
    rotary: int = 0  # numbers of a head that are rotated


def rope_from_hf(
    fields: ConfigValues, head_dim: int, context_length: int, *, partial: bool = False, gained: bool = False
) -> Rope:
    """The rotary values of a config.json; `context_length` is its max_position_embeddings, `partial` whether it may say
    that only a part of each head is rotated, `gained` whether that number counts what linear scaling gains.

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for a kind or a field that we lack.
    """
    inner = _hf_parameters(fields)
    theta = (inner if inner.has("rope_theta") else fields).number("rope_theta", 1.0, MAX_THETA, DEFAULT_THETA)
    kind = inner.values.get("rope_type", inner.values.get("type", "default"))
    if kind not in HF_KINDS:
        raise UnsupportedModel(f"{fields.where}: rope type {shown(kind)} is not supported: {', '.join(HF_KINDS)} are")
    rotary = _hf_rotary(inner if inner.has(PARTIAL) else fields, head_dim, partial)
    scaling = _hf_scaling(str(kind), inner, rotary, context_length)
    if gained and isinstance(scaling, LinearScaling):
        scaling = replace(scaling, original=max(1, round(context_length / scaling.factor)))
    return _checked(Rope(theta, scaling, context_length, rotary), rotary, fields.where)


def rope_from_gguf(
    fields: ConfigValues, stored: Mapping[str, tuple[float, ...]], head_dim: int, context_length: int
) -> Rope:
    """The rotary values of GGUF metadata, keys without the architecture; `stored` are the factor tensors there are.

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for a kind or a key that we lack.
    """
    prefix = "rope.scaling."
    scaled = {key.removeprefix(prefix): None for key in fields.values if key.startswith(prefix)}
    ConfigValues(scaled, fields.where).refuse_unknown(GGUF_KEYS, "rope.scaling key")
    theta = fields.number("rope.freq_base", 1.0, MAX_THETA, DEFAULT_THETA)
    factor_key = "rope.scaling.factor" if fields.has("rope.scaling.factor") else "rope.scale_linear"
    silent = "longrope" if SHORT_FACTORS in stored else "linear" if fields.has(factor_key) else "none"
    kind = fields.text("rope.scaling.type", silent)  # llama.cpp's converter does not say it of Phi-3 and MiniCPM3
    if kind not in GGUF_KINDS:
        known = ", ".join(GGUF_KINDS)
        raise UnsupportedModel(f"{fields.where}: rope.scaling.type {shown(kind)} is not supported: {known} are")
    lists = {
        name: ConfigValues(stored, fields.where).numbers(name, head_dim // 2, MIN_FACTOR, MAX_DIVISOR)
        for name in stored
    }
    if set(lists.get(FACTORS, ())) == {1.0}:
        del lists[FACTORS]
    if kind != "longrope" and (SHORT_FACTORS in lists or LONG_FACTORS in lists):
        raise ModelFileError(f"{fields.where}: it has the tensors of longrope, but its rope.scaling.type is {kind!r}")
    scaling = _gguf_scaling(kind, fields, factor_key, lists, context_length)
    return _checked(Rope(theta, scaling, context_length), head_dim, fields.where)


def _hf_parameters(fields: ConfigValues) -> ConfigValues:
    """The object that holds the parameters, empty if there is none."""
    held = [fields.values.get(key) for key in ("rope_scaling", "rope_parameters")]
    given = [value for value in held if value not in (None, {})]
    for value in given:
        if not isinstance(value, Mapping):
            raise ModelFileError(f"{fields.where}: rope parameters must be an object, they are {shown(value)}")
    if len(given) == 2 and given[0] != given[1]:
        raise ModelFileError(f"{fields.where}: rope_scaling and rope_parameters differ; leave one out")
    inner = ConfigValues(given[0] if given else {}, fields.where)
    inner.refuse_unknown(HF_KEYS, "rope parameter")
    if fields.has(HF_ORIGINAL):  # beside the object, as Phi-3 has it: counts first in transformers too
        return ConfigValues({**inner.values, HF_ORIGINAL: fields.values[HF_ORIGINAL]}, fields.where)
    return inner


def _hf_rotary(holder: ConfigValues, head_dim: int, partial: bool) -> int:
    """How many numbers of a head are rotated, by the fields that say it; all of them where they do not.

    transformers rounds an odd number up and keeps it in the frequencies' exponents, which is refused.
    """
    if not holder.has(PARTIAL):
        return head_dim
    share = holder.number(PARTIAL, 0.0, 1.0)
    if share != 1 and not partial:
        raise UnsupportedModel(f"{holder.where}: {PARTIAL} is {share:g}; only 1 is supported")
    rotary = int(head_dim * share)
    if rotary < 2 or (rotary != head_dim and rotary % 2):
        what = f"{rotary} of a head's {head_dim} numbers cannot be rotated"
        raise ModelFileError(f"{holder.where}: {what}; they must be pairs ({PARTIAL} is {share:g})")
    return rotary


def _hf_scaling(kind: str, inner: ConfigValues, head_dim: int, context_length: int) -> RopeScaling:
    if kind == "default":
        return UNSCALED
    if kind == "linear":
        return LinearScaling(factor=_factor(inner, "factor"), original=context_length)
    if kind == "dynamic":
        return DynamicNtkScaling(factor=_factor(inner, "factor"), original=context_length)
    original = inner.integer(HF_ORIGINAL, 2, MAX_CONTEXT)
    if kind == "yarn":
        factor = _factor(inner, "factor", context_length / original)
        mscales = [inner.number(key, 0.0, MAX_FACTOR, 0.0) for key in ("mscale", "mscale_all_dim")]
        usual = magnitude(factor, mscales[0]) / magnitude(factor, mscales[1]) if all(mscales) else None
        return YarnScaling(
            factor=factor,
            original=original,
            beta_fast=_turns(inner, "beta_fast", 32.0),
            beta_slow=_turns(inner, "beta_slow", 1.0),
            truncate=inner.flag("truncate", True),
            attention=_factor(inner, "attention_factor", usual or magnitude(factor)),
        )
    if kind == "llama3":
        low, high = (inner.number(f"{end}_freq_factor", MIN_FACTOR, MAX_FACTOR) for end in ("low", "high"))
        return Llama3Scaling(factor=_factor(inner, "factor"), original=original, low=low, high=high)
    stretch = _factor(inner, "factor", context_length / original)
    return LongRopeScaling(
        short=inner.numbers("short_factor", head_dim // 2, MIN_FACTOR, MAX_FACTOR),
        long=inner.numbers("long_factor", head_dim // 2, MIN_FACTOR, MAX_FACTOR),
        original=original,
        attention=_factor(inner, "attention_factor", sqrt(1 + log(max(stretch, 1.0)) / log(original))),
    )


def _gguf_scaling(
    kind: str, fields: ConfigValues, factor_key: str, lists: Mapping[str, tuple[float, ...]], context_length: int
) -> RopeScaling:
    divisors, attention = lists.get(FACTORS, ()), _factor(fields, "rope.scaling.attn_factor", 1.0)
    if kind == "none":
        return RopeScaling(divisors=divisors, attention=attention)
    original_key = "rope.scaling.original_context_length"
    if kind == "linear":
        original = fields.integer(original_key, 1, MAX_CONTEXT) if fields.has(original_key) else 0
        factor = _factor(fields, factor_key)
        if factor == 1:
            return RopeScaling(divisors=divisors, attention=attention)
        return LinearScaling(factor=factor, original=original, divisors=divisors, attention=attention)
    original = fields.integer(original_key, 2, MAX_CONTEXT, context_length if kind == "longrope" else None)
    if kind == "yarn":
        return _gguf_yarn(fields, _factor(fields, factor_key), original, divisors, attention)
    if divisors or (fields.has(factor_key) and _factor(fields, factor_key) != 1):
        what = FACTORS if divisors else factor_key
        raise UnsupportedModel(f"{fields.where}: longrope together with {what} is not supported")
    for name in (SHORT_FACTORS, LONG_FACTORS):
        if name not in lists:
            raise ModelFileError(f"{fields.where}: its rope.scaling.type is 'longrope', but it has no tensor {name}")
    return LongRopeScaling(short=lists[SHORT_FACTORS], long=lists[LONG_FACTORS], original=original, attention=attention)


def _gguf_yarn(
    fields: ConfigValues, factor: float, original: int, divisors: tuple[float, ...], attention: float
) -> RopeScaling:
    """YaRN of GGUF keys. `yarn_attn_factor` is transformers' attention_factor, of which the converter makes it."""
    extrapolation = fields.number("rope.scaling.yarn_ext_factor", 0.0, 1.0, 1.0)
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0, MAX_FACTOR, 0.0)
    usual = magnitude(factor) / (magnitude(factor, multiplier) if multiplier else 1.0)
    if extrapolation == 0:
        usual = 1.0  # llama.cpp: without the ramp this is linear scaling, which leaves the magnitude alone
    return YarnScaling(
        factor=factor,
        original=original,
        beta_fast=_turns(fields, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=_turns(fields, "rope.scaling.yarn_beta_slow", 1.0),
        extrapolation=extrapolation,
        divisors=divisors,
        attention=attention * _factor(fields, "rope.scaling.yarn_attn_factor", usual),
    )


def _factor(fields: ConfigValues, key: str, default: float | None = None) -> float:
    return fields.number(key, MIN_FACTOR, MAX_FACTOR, default)


def _turns(fields: ConfigValues, key: str, default: float) -> float:
    """How often a frequency turns at a ramp's end; 0 stands for the default, as in transformers."""
    value = fields.number(key, 0.0, MAX_TURNS, default) or default
    return ConfigValues({key: value}, fields.where).number(key, MIN_TURNS, MAX_TURNS)


def magnitude(factor: float, weight: float = 1.0) -> float:
    """By how much YaRN enlarges cosines and sines (Peng et al. 2023, equation 22, as its authors' code has it)."""
    return 1.0 + 0.1 * weight * log(factor) if factor > 1 else 1.0


def _checked(rope: Rope, head_dim: int, where: str) -> Rope:
    """The relations between values that each alone may have; and the context that scaling gives."""
    scaling: Any = rope.scaling
    if isinstance(scaling, YarnScaling) and scaling.beta_fast < scaling.beta_slow:
        raise ModelFileError(f"{where}: beta_fast {scaling.beta_fast:g} is below beta_slow {scaling.beta_slow:g}")
    if isinstance(scaling, YarnScaling) and rope.theta <= 1:
        raise ModelFileError(f"{where}: a rotary base of {rope.theta:g} has no fast and slow frequencies for yarn")
    if isinstance(scaling, DynamicNtkScaling) and head_dim <= 2:
        raise ModelFileError(f"{where}: dynamic rope scaling needs heads of 4 dimensions or more, they have {head_dim}")
    if isinstance(scaling, Llama3Scaling) and scaling.high < scaling.low:
        what = f"high_freq_factor {scaling.high:g} is below low_freq_factor {scaling.low:g}"
        raise ModelFileError(f"{where}: {what}")
    return rope._replace(context_length=min(max(rope.context_length, scaling.extended_context), MAX_CONTEXT))
