"""What the families of Mamba 1's state spaces share: what files call their numbers and weights.

GGUF keys and tensors: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of transformers.
"""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import OPTIONAL, Field
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import stacked
from sporelm.checkpoints.tensor_names import GGUF, Kind, Names, Stored, Table, with_bias
from sporelm.models.blocks import SpaceChannels
from sporelm.models.config import MOST_HEAD_DIM, MOST_WIDTH, ModelConfig
from sporelm.models.families.space_fields import MOST_GROWTH, MOST_TAPS

MADE_PARTS = ("rank", "write", "read")
BOTH = (lambda c: c.own.inner, lambda c: c.own.inner)
MADE = (lambda c: c.own.rank, lambda c: c.own.size, lambda c: c.own.size)


def selective_fields(
    taps: str, size: str, rank: str, expand: str, bias: str, taps_bias: str, inner: str = ""
) -> tuple[Field, ...]:
    """The numbers of `SpaceChannels`, by their keys in config.json."""
    return (
        Field("own.taps", "ssm.conv_kernel", "u32", taps, 2, MOST_TAPS),
        Field("own.size", "ssm.state_size", "u32", size, 1, MOST_HEAD_DIM),
        Field("own.rank", "ssm.time_step_rank", "u32", rank, 1, MOST_WIDTH),
        Field("own.inner", "ssm.inner_size", "u32", inner, 1, MOST_WIDTH, OPTIONAL),
        Field("own.expand", "", "u32", expand, 1, MOST_GROWTH),
        Field("own.bias", "", "bool", bias, weight="layers.{}.ssm_o.bias"),
        Field("own.taps_bias", "", "bool", taps_bias, default=True, weight="layers.{}.ssm_conv.bias"),
    )


def selective_names(mixer: str) -> Table:
    """The names of a selective space's weights; `mixer` is how they begin in folders.

    What multiplies a row lies in one tensor, and so does what multiplies a convolved one.
    """
    parts = (
        Names(
            f"layers.{{}}.ssm_{part}.{kind}",
            Stored(f"blk.{{}}.{gguf}.{kind}", rows=stacked(number, *sizes)),
            Stored(f"{mixer}{hf}.{kind}", rows=stacked(number, *sizes)),
        )
        for names, gguf, hf, sizes in (("xz", "ssm_in", "in_proj", BOTH), (MADE_PARTS, "ssm_x", "x_proj", MADE))
        for number, part in enumerate(names)
        for kind in (("weight", "bias") if sizes is BOTH else ("weight",))
    )
    return (
        *parts,
        *with_bias("layers.{}.ssm_dt", "blk.{}.ssm_dt", f"{mixer}dt_proj"),
        *with_bias("layers.{}.ssm_o", "blk.{}.ssm_out", f"{mixer}out_proj"),
        Names(
            "layers.{}.ssm_conv.weight",
            Stored("blk.{}.ssm_conv1d.weight", transposed=True),
            Stored(f"{mixer}conv1d.weight", transposed=True, between=True),
        ),
        Names("layers.{}.ssm_conv.bias", "blk.{}.ssm_conv1d.bias", f"{mixer}conv1d.bias"),
        Names(
            "layers.{}.ssm.decay",
            Stored("blk.{}.ssm_a", transposed=True),
            Stored(f"{mixer}A_log", transposed=True, log=True),
        ),
        Names("layers.{}.ssm.skip", "blk.{}.ssm_d", f"{mixer}D"),
        *(
            Names(
                f"layers.{{}}.ssm_{part}_norm.weight",
                f"blk.{{}}.ssm_{short}_norm.weight",
                f"{mixer}{short}_layernorm.weight",
            )
            for part, short in zip(MADE_PARTS, ("dt", "b", "c"), strict=True)
        ),
    )


def with_rank(values: dict[str, Any], key: str) -> dict[str, Any]:
    """config.json with a number for the rank of time steps where it says "auto": a sixteenth of the width."""
    width = values.get("hidden_size")
    if values.get(key, "auto") != "auto" or type(width) is not int:
        return values
    return {**values, key: -(-width // 16)}


def sized(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """With channels where folders say how many widths they are alone, and the other way round."""
    own: SpaceChannels = config.own
    told = values.integer("ssm.inner_size", 1, MOST_WIDTH) if kind == GGUF else own.inner
    own = replace(own, inner=told or own.expand * config.width)
    return replace(config, own=replace(own, expand=max(1, own.inner // config.width)))
