"""Mamba 2: layers of state spaces and nothing else."""

from dataclasses import replace
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.models.blocks import Layer, RMSNorm, SpaceHeads, StateSpace
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_HEAD_DIM, MOST_HEADS, MOST_WIDTH, ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.forms import stacked
from sporelm.weights.names import HF, Kind, Names, Stored, Table

MIXER = "backbone.layers.{}.mixer."
MOST_TAPS, MOST_GROWTH = 64, 64
UNBOUNDED = (0.0, float("inf"))
SIZES = (lambda c: c.own.inner, lambda c: c.own.channels, lambda c: c.own.heads)
FIELDS = (
    Field("own.taps", "ssm.conv_kernel", "u32", "conv_kernel", 2, MOST_TAPS),
    Field("own.heads", "ssm.time_step_rank", "u32", "num_heads", 1, MOST_HEADS),
    Field("own.groups", "ssm.group_count", "u32", "n_groups", 1, MOST_HEADS),
    Field("own.size", "ssm.state_size", "u32", "state_size", 1, MOST_HEAD_DIM),
    Field("own.inner", "ssm.inner_size", "u32", "", 1, MOST_WIDTH),
    Field("own.head_dim", "", "u32", "head_dim", 1, MOST_HEAD_DIM),
    Field("own.expand", "", "u32", "expand", 1, MOST_GROWTH),
    Field("own.bias", "", "bool", "use_bias", weight="layers.{}.ssm_o.bias"),
    Field("own.taps_bias", "", "bool", "use_conv_bias", default=True, weight="layers.{}.ssm_conv.bias"),
    Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
)


def _parts() -> Table:
    """What multiplies a row lies in one tensor: for the gate, for what is convolved, for time steps."""
    return tuple(
        Names(
            f"layers.{{}}.ssm_{part}.{kind}",
            Stored(f"blk.{{}}.ssm_in.{kind}", rows=stacked(number, *SIZES)),
            Stored(f"{MIXER}in_proj.{kind}", rows=stacked(number, *SIZES)),
        )
        for number, part in enumerate(("z", "xbc", "step"))
        for kind in ("weight", "bias")
    )


NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "backbone.embeddings.weight"),
    Names("output_norm.weight", "output_norm.weight", "backbone.norm_f.weight"),
    Names("output.weight", "output.weight", "lm_head.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", "backbone.layers.{}.norm.weight"),
    *_parts(),
    *(
        Names(f"layers.{{}}.ssm_o.{kind}", f"blk.{{}}.ssm_out.{kind}", f"{MIXER}out_proj.{kind}")
        for kind in ("weight", "bias")
    ),
    Names(
        "layers.{}.ssm_conv.weight",
        Stored("blk.{}.ssm_conv1d.weight", transposed=True),
        Stored(f"{MIXER}conv1d.weight", transposed=True, between=True),
    ),
    Names("layers.{}.ssm_conv.bias", "blk.{}.ssm_conv1d.bias", f"{MIXER}conv1d.bias"),
    Names("layers.{}.ssm.decay", Stored("blk.{}.ssm_a", between=True), Stored(f"{MIXER}A_log", log=True)),
    Names("layers.{}.ssm.skip", Stored("blk.{}.ssm_d", between=True), f"{MIXER}D"),
    Names("layers.{}.ssm_dt.bias", "blk.{}.ssm_dt.bias", f"{MIXER}dt_bias"),
    Names("layers.{}.ssm_norm.weight", "blk.{}.ssm_norm.weight", Stored(f"{MIXER}norm.weight", flat=True)),
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    own: SpaceHeads = config.own
    own = replace(own, inner=own.expand * config.width) if kind == HF else replace(own, head_dim=own.inner // own.heads)
    if own.inner != own.heads * own.head_dim or own.heads % own.groups:
        what = f"{own.inner} numbers of {own.heads} heads, {own.groups} groups"
        raise ModelFileError(f"{values.where}: {what}: they are no whole parts of each other")
    if values.has("time_step_limit"):
        low, high = values.numbers("time_step_limit", 2, *UNBOUNDED)
        own = replace(own, low=low, high=max(low, high))
    return replace(config, own=replace(own, expand=max(1, own.inner // config.width)))


def _unsaid(config: ModelConfig) -> str:
    return "" if (config.own.low, config.own.high) == UNBOUNDED else "time steps have limits"


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    return {"mamba2.attention.head_count": ("u32", 0), "mamba2.feed_forward_length": ("u32", 0)}


NUMBERS: dict[str, Any] = {
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
}
NUMBERS |= {"layer_norm_epsilon": 1e-5, "max_position_embeddings": 1 << 20}
BIASES = (("use_bias", "own.bias"), ("use_conv_bias", "own.taps_bias"))


@architecture(
    Family(
        "mamba2",
        (HfClass("Mamba2ForCausalLM", "mamba2", NUMBERS, BIASES),),
        fields(*FIELDS, without=("heads", "kv_heads", "head_dim", "ffn", "rotary", "window")),
        NAMES,
        fixed={"rotary": 0},
        finish=_finished,
        unsaid=_unsaid,
        said=_said,
        attends=False,
        own=SpaceHeads,
    )
)
class Mamba2(Decoder):
    """x + mixer(norm(x))."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), StateSpace(name, config))
