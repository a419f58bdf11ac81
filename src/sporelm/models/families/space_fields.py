"""What the families of state spaces share: what files call their numbers and weights.

GGUF keys and tensors: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of transformers.
"""

from dataclasses import dataclass, replace

from sporelm.checkpoints.family import Field
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import stacked
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Stored, Table, with_bias
from sporelm.errors import ModelFileError
from sporelm.models.config import MOST_HEAD_DIM, MOST_HEADS, MOST_WIDTH, ModelConfig


@dataclass(frozen=True)
class SpaceHeads:
    taps: int
    heads: int
    groups: int
    size: int
    inner: int = 0
    head_dim: int = 0
    expand: int = 0
    bias: bool = False
    taps_bias: bool = True
    low: float = 0.0
    high: float = float("inf")
    attention: frozenset[int] = frozenset()

    channels = conv_channels = property(lambda n: n.inner + 2 * n.groups * n.size)
    conv_kernel, num_heads, num_groups = (
        property(lambda n: n.taps),
        property(lambda n: n.heads),
        property(lambda n: n.groups),
    )
    state_size, inner_size = property(lambda n: n.size), property(lambda n: n.inner)
    has_bias, has_conv_bias = property(lambda n: n.bias), property(lambda n: n.taps_bias)
    min_time_step, max_time_step = property(lambda n: n.low), property(lambda n: n.high)


@dataclass(frozen=True)
class RankedHeads(SpaceHeads):
    rank: int = 0
    time_step_rank = property(lambda n: n.rank)


@dataclass(frozen=True)
class SharedBlocks(SpaceHeads):
    blocks: int = 1
    rank: int = 0
    adapts: bool = False


MOST_TAPS, MOST_GROWTH = 64, 64
UNBOUNDED = (0.0, float("inf"))
SIZES = (lambda c: c.own.inner, lambda c: c.own.channels, lambda c: c.own.heads)
# What config.json calls the heads, their width and their groups, in one family or another.
HF_SHAPE = (
    *("num_heads", "head_dim", "n_groups", "expand", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand"),
    *("mamba_num_heads", "mamba_head_dim", "n_mamba_heads", "mamba_ngroups", "mamba_headdim", "mamba_d_ssm"),
)


def space_fields(
    taps: str, heads: str, groups: str, size: str, head_dim: str, expand: str, bias: str, taps_bias: str
) -> tuple[Field, ...]:
    """The numbers of `SpaceHeads`, by their keys in config.json; without `expand` heads say how wide they are."""
    return (
        Field("own.taps", "ssm.conv_kernel", "u32", taps, 2, MOST_TAPS),
        Field("own.heads", "ssm.time_step_rank", "u32", heads, 1, MOST_HEADS),
        Field("own.groups", "ssm.group_count", "u32", groups, 1, MOST_HEADS),
        Field("own.size", "ssm.state_size", "u32", size, 1, MOST_HEAD_DIM),
        Field("own.inner", "ssm.inner_size", "u32", "", 1, MOST_WIDTH),
        Field("own.head_dim", "", "u32", head_dim, 1, MOST_HEAD_DIM),
        Field("own.expand", "", "u32", expand, 1, MOST_GROWTH),
        Field("own.bias", "", "bool", bias, weight="layers.{}.ssm_o.bias"),
        Field("own.taps_bias", "", "bool", taps_bias, default=True, weight="layers.{}.ssm_conv.bias"),
    )


def space_names(mixer: str) -> Table:
    """The names of a state space's weights; `mixer` is how they begin in folders.

    What multiplies a row lies in one tensor: for the gate, for what is convolved, for time steps.
    """
    parts = (
        Names(
            f"layers.{{}}.ssm_{part}.{kind}",
            Stored(f"blk.{{}}.ssm_in.{kind}", rows=stacked(number, *SIZES)),
            Stored(f"{mixer}in_proj.{kind}", rows=stacked(number, *SIZES)),
        )
        for number, part in enumerate(("z", "xbc", "step"))
        for kind in ("weight", "bias")
    )
    return (
        *parts,
        *with_bias("layers.{}.ssm_o", "blk.{}.ssm_out", f"{mixer}out_proj"),
        Names(
            "layers.{}.ssm_conv.weight",
            Stored("blk.{}.ssm_conv1d.weight", transposed=True),
            Stored(f"{mixer}conv1d.weight", transposed=True, between=True),
        ),
        Names("layers.{}.ssm_conv.bias", "blk.{}.ssm_conv1d.bias", f"{mixer}conv1d.bias"),
        Names("layers.{}.ssm.decay", Stored("blk.{}.ssm_a", between=True), Stored(f"{mixer}A_log", log=True)),
        Names("layers.{}.ssm.skip", Stored("blk.{}.ssm_d", between=True), f"{mixer}D"),
        Names("layers.{}.ssm_dt.bias", "blk.{}.ssm_dt.bias", f"{mixer}dt_bias"),
        Names("layers.{}.ssm_norm.weight", "blk.{}.ssm_norm.weight", Stored(f"{mixer}norm.weight", flat=True)),
    )


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """What follows from the numbers of heads; limits of time steps."""
    own: SpaceHeads = config.own
    if kind == HF:
        own = replace(own, inner=own.expand * config.width or own.heads * own.head_dim)
    else:
        own = replace(own, head_dim=own.inner // own.heads)
    if own.inner != own.heads * own.head_dim or own.heads % own.groups:
        what = f"{own.inner} numbers of {own.heads} heads, {own.groups} groups"
        keys = values.among(*HF_SHAPE)
        raise ModelFileError(f"{values.where}: {what}: these do not divide evenly{keys}")
    if values.has("time_step_limit"):
        low, high = values.numbers("time_step_limit", 2, *UNBOUNDED)
        if low > high:
            what = f"time_step_limit is [{low:g}, {high:g}]"
            raise ModelFileError(f"{values.where}: {what}; the first must be at most the second")
        own = replace(own, low=low, high=high)
    return replace(config, own=replace(own, expand=max(1, own.inner // config.width)))


def unsaid(config: ModelConfig) -> str:
    """Why a GGUF file cannot say it."""
    return "" if (config.own.low, config.own.high) == UNBOUNDED else "time steps have limits"
