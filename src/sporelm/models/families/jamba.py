"""Jamba: Mamba 1's layers with norms, attention without positions every so many, experts every so many."""

from collections.abc import Set
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.experts import expert_fields, expert_names
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind, Names, changed, with_bias
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, MambaMixer, SpaceChannels, feed_forward, pre_norm
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import attention_layers, by_key_heads, key_heads, with_routers
from sporelm.models.families.selective_fields import selective_fields, selective_names, sized, with_rank
from sporelm.models.registry import architecture

LAYER = "model.layers.{}."
MLP = f"{LAYER}feed_forward."
NORMS = (
    Names("output_norm.weight", "output_norm.weight", "model.final_layernorm.weight"),
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", f"{LAYER}pre_ff_layernorm.weight"),
)
BLOCK = tuple(
    names
    for part in ("gate", "up", "down")
    for names in with_bias(f"layers.{{}}.ffn_{part}", f"blk.{{}}.ffn_{part}", f"{MLP}{part}_proj")
)
NAMES = changed(
    COMMON,
    *NORMS,
    *BLOCK,
    *expert_names(MLP),
    Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}router.weight"),
    *selective_names(f"{LAYER}mamba."),
)
NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "num_experts_per_tok": 2}
NUMBERS |= {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "max_position_embeddings": 262144}
BIASES = (("mamba_proj_bias", "own.bias"), ("mamba_conv_bias", "own.taps_bias"))
PERIODS = {"attn_layer": (8, 4), "expert_layer": (2, 1)}  # every so many layers, from which on


def _every(values: Fields, name: str, layers: int) -> frozenset[int]:
    usual = PERIODS[name]
    period = values.integer(f"{name}_period", 1, MOST_LAYERS, usual[0])
    offset = values.integer(f"{name}_offset", 0, period - 1, usual[1])
    return frozenset(range(offset, layers, period))


def _as_period(name: str, chosen: Set[int], layers: int) -> dict[str, int]:
    """Those layers in config.json's words. Raises UnsupportedModel where they are not every so many."""
    first, *others = [*sorted(chosen), layers]
    period = others[0] - first if len(others) > 1 else layers + 1
    if chosen != {*range(first, layers, period)} or first >= period:
        raise UnsupportedModel(f"{name}s {sorted(chosen)} of {layers} are not every so many; config.json cannot say it")
    return {f"{name}_period": period, f"{name}_offset": first}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """One expert is none."""
    told = [values[key] for key in ("num_experts", "num_local_experts") if values.get(key) is not None]
    return with_rank({**values, "num_experts": 0 if told[:1] == [1] else (told or [16])[0]}, "mamba_dt_rank")


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config, layers = sized(config, values, kind), config.layers
    if kind == HF:
        attention, dense = (
            _every(values, "attn_layer", layers),
            {*range(layers)} - _every(values, "expert_layer", layers),
        )
        experts = config.experts and replace(config.experts, dense=frozenset(dense))
        config = replace(config, experts=experts)
    else:
        attention = attention_layers(values, values.values.get("layer_types") or ["attention"] * layers, layers)
    return replace(config, own=replace(config.own, attention=attention))


def _words(config: ModelConfig) -> dict[str, Any]:
    layers, experts = config.layers, config.experts
    found = _as_period("attn_layer", config.own.attention, layers)
    if experts is None:
        return found | {"num_experts": 1, "num_experts_per_tok": 1}
    return found | _as_period("expert_layer", {layer for layer in range(layers) if experts.at(layer)}, layers)


@architecture(
    Family(
        "jamba",
        (HfClass("JambaForCausalLM", "jamba", NUMBERS, BIASES),),
        fields(
            *selective_fields(
                *("mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand"),
                *("mamba_proj_bias", "mamba_conv_bias"),
            ),
            *expert_fields(optional=True, count="num_experts", used="num_experts_per_tok"),
        ),
        NAMES,
        fixed={"rotary": 0, "own.norms": "weighted"},
        only={"hidden_act": ("silu",), "mamba_inner_layernorms": (True,), "sliding_window": (None,)},
        finish=_finished,
        noticed=with_routers,
        words=_words,
        said=lambda config: key_heads(config, "jamba", config.own.attention),
        regrouped=by_key_heads,
        reworded=_reworded,
        own=SpaceChannels,
    )
)
class Jamba(Decoder):
    """The Llama layer without positions, a state space in place of most of its attention (Lieber et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        mixer = Attention(name, config) if index in config.own.attention else MambaMixer(name, config)
        return pre_norm(config, index, mixer, feed_forward(name, config, index))
