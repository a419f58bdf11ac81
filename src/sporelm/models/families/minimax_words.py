"""What the config.json of MiniMax-Text-01 and M1 calls its numbers: in transformers' words, and in its makers'."""

from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families.delta_fields import KINDS, RECURRENT
from sporelm.models.families.layer_kinds import attention_layers

HF_CLASS, MAKERS = "MiniMaxForCausalLM", ("MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM")
PARTS = {"full_attn": "layernorm_full_attention", "linear_attn": "layernorm_linear_attention", "mlp": "layernorm_mlp"}


@dataclass(frozen=True)
class LightningLayers:
    """What only this family has: by what rows are multiplied beside attention, lightning attention and experts."""

    full: float
    linear: float = 1.0
    mlp: float = 1.0
    interval: int = 8  # one of so many layers is attention
    attention: frozenset[int] = frozenset()  # the layers that are


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The words of transformers for those of its makers; how many numbers of a head are rotated, as a part of it."""
    found = dict(values)
    for part, theirs in PARTS.items():
        for factor in ("alpha", "beta"):
            if (name := f"{theirs}_{factor}") in values:
                found[f"{part}_{factor}_factor"] = values[name]
    if isinstance(kinds := values.get("attn_type_list"), list) and values.get("layer_types") is None:
        found["layer_types"] = [KINDS[kind] if kind in (0, 1) else kind for kind in kinds]
    rotary, dim = values.get("rotary_dim"), values.get("head_dim")
    if rotary is None or rotary == dim:
        return found
    if type(dim) is not int or type(rotary) is not int or not 0 < rotary < dim:
        raise UnsupportedModel(f"rotary_dim is {shown(rotary)}; it must be whole, from 1 to head_dim {shown(dim)}")
    return {"partial_rotary_factor": rotary / dim} | found


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    own: LightningLayers = config.own
    if config.architecture == HF_CLASS and config.rotary != config.head_dim:
        what = f"{HF_CLASS} rotates whole heads, not {config.rotary} of {config.head_dim} numbers"
        raise UnsupportedModel(f"{values.where}: {what}; {' and '.join(MAKERS)} rotate a part")
    told = values.values.get("layer_types" if kind == HF else RECURRENT)
    if told is None and kind == HF:  # of transformers
        told = [KINDS[layer % 2 == 0] for layer in range(config.layers)]
    attention = frozenset(range(own.interval - 1, config.layers, own.interval))
    attention = attention if told is None else attention_layers(values, told, config.layers, flags=kind != HF)
    if kind != HF:
        own = replace(own, linear=own.full, mlp=own.full)
    return replace(config, own=replace(own, attention=attention))


def words(config: ModelConfig) -> dict[str, Any]:
    own: LightningLayers = config.own
    types = [int(layer in own.attention) for layer in range(config.layers)]
    found = {"attn_type_list": types, "layer_types": [KINDS[kind] for kind in types]}
    factors = zip(PARTS.values(), (own.full, own.linear, own.mlp), strict=True)
    found |= {f"{part}_{name}": value for part, alpha in factors for name, value in (("alpha", alpha), ("beta", 1.0))}
    return found if config.rotary == config.head_dim else {**found, "rotary_dim": config.rotary, "postnorm": True}


def unsaid(config: ModelConfig) -> str:
    own: LightningLayers = config.own
    return "" if own.full == own.linear == own.mlp else "its blocks have rows multiplied by different numbers"
