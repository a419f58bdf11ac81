"""Granite 4: state spaces with a layer of attention here and there, dense or with experts, and Granite's scales; and
Bamba, which has none of those."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.experts import expert_fields
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, Mamba2Mixer, SpaceHeads, feed_forward, pre_norm
from sporelm.models.config import ModelConfig, Scales
from sporelm.models.decoder import Decoder
from sporelm.models.families import bamba_words
from sporelm.models.families.bamba_words import BAMBA
from sporelm.models.families.granite import NUMBERS, scored
from sporelm.models.families.granite_hybrid_names import NAMES
from sporelm.models.families.granitemoe import DEFAULTS
from sporelm.models.families.layer_kinds import attention_layers, by_key_heads, key_heads
from sporelm.models.families.space_fields import finished, space_fields, unsaid
from sporelm.models.registry import architecture

FINETUNED = "rope.scaling.finetuned"
ATTENTION, SPACE = "attention", "mamba"
SHAPE = {**DEFAULTS, "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256}
SHAPE |= {"mamba_d_conv": 4, "mamba_expand": 2}
FLAGS = (("attention_bias", "attention_bias"), ("mamba_proj_bias", "own.bias"), ("mamba_conv_bias", "own.taps_bias"))


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    values = bamba_words.as_granite(values) if values.get("architectures") == [BAMBA] else values
    if values.get("mamba_d_head", "auto") != "auto":
        return values
    width, growth, heads = (values.get(key) for key in ("hidden_size", "mamba_expand", "mamba_n_heads"))
    known = all(type(each) is int and each > 0 for each in (width, growth, heads))
    return {**values, "mamba_d_head": width * growth // heads} if known else values  # type: ignore[operator]


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers are attention, whether they rotate, and how wide the one block of dense models is."""
    config = finished(scored(config, values, kind), values, kind)
    kinds = values.values.get("layer_types") or [SPACE] * config.layers
    attention = attention_layers(values, kinds, config.layers)
    if kind == HF:
        rotates = values.values.get("position_embedding_type") == "rope"
        ffn = config.ffn if config.experts else values.integer("shared_intermediate_size", 1, config.width * 64)
        config = replace(config, ffn=ffn)
    else:
        rotates = values.flag(FINETUNED, True)
    if config.architecture == BAMBA:
        config = replace(config, scales=Scales())
    elif kind == HF and config.rotary != config.head_dim:
        what = f"{config.rotary} of a head's {config.head_dim} numbers are rotated ({PARTIAL})"
        raise UnsupportedModel(f"{values.where}: {what}, which is not supported")
    return replace(config, rotary=config.rotary if rotates else 0, own=replace(config.own, attention=attention))


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    found = key_heads(config, "granitehybrid", config.own.attention)
    found["granitehybrid.rope.dimension_count"] = ("u32", config.rotary or config.head_dim)
    return {**found, f"granitehybrid.{FINETUNED}": ("bool", config.rotary > 0)}


def _class(config: ModelConfig) -> str:
    return BAMBA if config.rotary not in (0, config.head_dim) else "GraniteMoeHybridForCausalLM"


def _words(config: ModelConfig) -> dict[str, Any]:
    if _class(config) == BAMBA:
        return bamba_words.words(config)
    kinds = [ATTENTION if layer in config.own.attention else SPACE for layer in range(config.layers)]
    dense = {"shared_intermediate_size": config.ffn, "num_local_experts": 0, "num_experts_per_tok": 0}
    found = {"layer_types": kinds, "position_embedding_type": "rope" if config.rotary else "nope"}
    return found if config.experts else found | dense


@architecture(
    Family(
        "granitehybrid",
        (
            HfClass("GraniteMoeHybridForCausalLM", "granitemoehybrid", SHAPE, FLAGS),
            HfClass(BAMBA, "bamba", bamba_words.NUMBERS, (*FLAGS, ("mlp_bias", "mlp_bias")), bamba_words.NAMES),
        ),
        fields(
            *NUMBERS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
            *space_fields(
                *("mamba_d_conv", "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_expand"),
                *("mamba_proj_bias", "mamba_conv_bias"),
            ),
            *expert_fields(
                optional=True,
                count="num_local_experts",
                used="num_experts_per_tok",
                shared_ffn="shared_intermediate_size",
            ),
        ),
        NAMES,
        fixed={"experts.scores": "softmax_of_chosen"},
        finish=_finished,
        choose=_class,
        unsaid=unsaid,
        said=_said,
        words=_words,
        regrouped=by_key_heads,
        reworded=_reworded,
        paired_rows=True,
        partial_rotary=True,
        own=SpaceHeads,
    )
)
class GraniteHybrid(Decoder):
    """Granite's layer with a state space in place of most of its attention (IBM 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        mixer = Attention(name, config) if index in config.own.attention else Mamba2Mixer(name, config)
        return pre_norm(config, index, mixer, feed_forward(name, config, index))
