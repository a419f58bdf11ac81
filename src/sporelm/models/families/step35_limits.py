"""How files describe Step 3.5: its layers with a window, and the limits of its feed-forward blocks."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.config_files import WINDOWED_LAYERS
from sporelm.checkpoints.experts import dense_layers
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.rope_fields import FACTORS
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.blocks.clamped_mlp import MIN_LIMIT
from sporelm.models.config import ModelConfig
from sporelm.models.families import window_heads
from sporelm.models.families.window_heads import WindowHeads, heads_of
from sporelm.models.rope_scaling import Llama3, RopeScaling

LEADING, MOST_LIMIT = 3, 1e6  # dense layers in front, where config.json does not say it
LIMITS = {
    "limits": ("swiglu_limits", "swiglu_clamp_exp"),
    "shared_limits": ("swiglu_limits_shared", "swiglu_clamp_shexp"),
}


@dataclass(frozen=True, kw_only=True)
class Step35Parts(WindowHeads):
    """What it has besides: the limits of each layer's experts, and of its other block; 0: there is none."""

    limits: tuple[float, ...] = ()
    shared_limits: tuple[float, ...] = ()


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The configuration with its windows and limits. GGUF files mean half of the numbers of a head that they say are
    rotated where there is no window. Raises ModelFileError, UnsupportedModel for layers that cannot be."""
    config, layers = window_heads.finished(config, values, kind), config.layers
    if kind == HF and config.experts:
        dense = dense_layers(values, layers, frozenset(range(min(LEADING, layers))))
        leading = len(dense) if dense == {*range(len(dense))} else 0
        experts = replace(config.experts, leading=leading, dense=frozenset() if leading else dense)
        config = replace(config, experts=experts)
    if kind != HF:
        rotary = config.rotary // 2
        scaling = replace(config.rope_scaling, divisors=config.rope_scaling.divisors[: rotary // 2])
        config = replace(config, rotary=rotary, rope_scaling=scaling)
    if config.rotary % 2 or type(config.rope_scaling) not in (RopeScaling, Llama3):
        what = f"{config.rotary} numbers of a head are rotated, scaled by {type(config.rope_scaling).__name__}"
        raise UnsupportedModel(f"{values.where}: {what}; only whole pairs may be, and only scaled by llama3")
    limits = {ours: limits_of(values, hf if kind == HF else gguf, layers) for ours, (hf, gguf) in LIMITS.items()}
    return replace(config, own=replace(config.own, **limits))


def limits_of(values: Fields, key: str, layers: int) -> tuple[float, ...]:
    """A limit for each layer, 0 where there is none. Raises ModelFileError for those that cannot be."""
    told: Any = values.values.get(key)
    told = told.tolist() if hasattr(told, "tolist") else told
    told = [0.0] * layers if told is None else [told] * layers if isinstance(told, int | float) else told
    told = [each or 0.0 for each in told[:layers]] if isinstance(told, list) else told
    limits = Fields({key: told}, values.where).numbers(key, layers, 0.0, MOST_LIMIT)
    if any(0 < limit < MIN_LIMIT for limit in limits):
        raise ModelFileError(f"{values.where}: {key} is {shown(told)}; limits are {MIN_LIMIT} or more, 0 for none")
    return limits


def unsaid(config: ModelConfig) -> str:
    if config.window is None:
        return "none of its layers has a window"
    half = config.own.local_rotary == 2 * config.rotary
    return "" if half else "layers without a window do not rotate half as many numbers as those with one"


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    local = [config.window_of(layer) is not None for layer in range(config.layers)]
    found = {window_heads.HEADS: ("[u32]", heads_of(config)), WINDOWED_LAYERS: ("[bool]", local)}
    found |= {gguf: ("[f32]", list(getattr(config.own, ours))) for ours, (_, gguf) in LIMITS.items()}
    return {f"step35.{key}": entry for key, entry in found.items()}


def wanted(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """llama.cpp reads a divisor for each frequency of layers with a window, which are those of 1."""
    scaled = isinstance(config.rope_scaling, Llama3) or config.rope_scaling.divisors
    return {FACTORS: ((config.own.local_rotary or 0) // 2,)} if scaled else {}
