"""Falcon-H1: attention and a state space side by side in each layer, and multipliers of what everything makes."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import ModelFileError
from sporelm.models.blocks import Attention, GatedMLP, Layer, Mamba2Mixer, ParallelMixers, pre_norm
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.falcon_h1_names import NAMES, FalconHeads
from sporelm.models.families.granite import LEAST, MOST
from sporelm.models.families.space_fields import finished, space_fields, unsaid
from sporelm.models.registry import architecture

SPACE, MLP = "ssm_multipliers", "mlp_multipliers"
NUMBERS: dict[str, Any] = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
NUMBERS |= {"mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1}
NUMBERS |= {"mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_norm_before_gate": True}
FLAGS = (
    *(("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias"), ("mamba_conv_bias", "own.taps_bias")),
    *(("mamba_rms_norm", "own.normed"), ("mamba_norm_before_gate", "own.norm_first")),
)
MULTIPLIERS = {
    "scales.embedding": "embedding",
    "scales.output": "lm_head",
    "own.attention_in": "attention_in",
    "own.attention_out": "attention_out",
    "own.key": "key",
    "own.space_in": "ssm_in",
    "own.space_out": "ssm_out",
}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """How wide state spaces and their heads are, where config.json leaves it to be computed."""
    width, growth, heads = (values.get(key) for key in ("hidden_size", "mamba_expand", "mamba_n_heads"))
    whole = all(type(each) is int and each > 0 for each in (width, growth, heads))
    inner, dim = values.get("mamba_d_ssm"), values.get("mamba_d_head") or "auto"
    if whole:
        inner = width * growth if inner is None else inner  # type: ignore[operator]
        dim = inner // heads if dim == "auto" and type(inner) is int else dim  # type: ignore[operator]
    return {**values, "mamba_d_ssm": inner, "mamba_d_head": dim}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = finished(config, values, kind)
    if kind != HF:
        return config
    own: FalconHeads = config.own
    if (inner := values.integer("mamba_d_ssm", 1, MOST_WIDTH)) != own.inner:
        what = f"{own.heads} heads of {own.head_dim} numbers"
        raise ModelFileError(f"{values.where}: mamba_d_ssm is {inner}, which are not {what}")
    parts = values.numbers(SPACE, 5, LEAST, MOST) if values.has(SPACE) else own.parts
    gate, down = values.numbers(MLP, 2, LEAST, MOST) if values.has(MLP) else (1.0, 1.0)
    scales = replace(config.scales, attention=None if own.key == 1 else config.head_dim**-0.5 * own.key)
    return replace(config, scales=scales, own=replace(own, parts=parts, gate=gate, down=down))


def _unsaid(config: ModelConfig) -> str:
    if config.own.normed and config.own.norm_first:
        return "state spaces are normed before their gates"
    if config.attention_bias:
        return "attention has biases"
    if config.tie_embeddings and config.scales.embedding != config.scales.output:
        return "one matrix is embedding and output, with a multiplier for each"
    return unsaid(config)


def _words(config: ModelConfig) -> dict[str, Any]:
    return {"mamba_d_ssm": config.own.inner, "mamba_proj_bias": False, "projectors_bias": False}


@architecture(
    Family(
        "falcon-h1",
        (HfClass("FalconH1ForCausalLM", "falcon_h1", NUMBERS, FLAGS),),
        fields(
            *space_fields(
                *("mamba_d_conv", "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", ""),
                *("mamba_proj_bias", "mamba_conv_bias"),
            ),
            *(Field(ours, "", "f32", f"{key}_multiplier", LEAST, MOST, 1.0) for ours, key in MULTIPLIERS.items()),
            *ATTENTION_BIAS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
            Field("own.normed", "", "bool", "mamba_rms_norm", weight="layers.{}.ssm_norm.weight"),
            Field("own.norm_first", "", "bool", "mamba_norm_before_gate", default=True),
        ),
        NAMES,
        only={"hidden_act": ("silu",), "mamba_proj_bias": (False,), "projectors_bias": (False,)},
        finish=_finished,
        unsaid=_unsaid,
        words=_words,
        reworded=_reworded,
        own=FalconHeads,
    )
)
class FalconH1(Decoder):
    """Llama's layer with a state space beside its attention (TII 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own = f"layers.{index}", config.own
        first = ("norm" if own.norm_first else "gate") if own.normed else ""
        space = Mamba2Mixer(
            name, config, own, first=first, factors=(own.space_in * own.parts[0], own.space_in * own.parts[4])
        )
        adds = own.attention_out, own.space_out
        mixer = ParallelMixers(Attention(name, config), space, in_factor=own.attention_in, out_factors=adds)
        return pre_norm(config, index, mixer, GatedMLP(name, config, factors=(own.gate, own.down)))
