"""The multipliers of Falcon-H1, and what files call its weights.

GGUF files have the multipliers in their weights: llama.cpp's converter puts them there, and its falcon-h1.cpp knows
none. Folders say them in config.json; those of the numbers that are convolved, which differ from part to part, we have
in the taps of the convolution, the others are computed with.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.tensor_names import COMMON, Names, Table, changed, form_in, with_bias
from sporelm.models.config import ModelConfig
from sporelm.models.families.space_fields import SpaceHeads, space_names

LAYER = "model.layers.{}."


@dataclass(frozen=True)
class FalconHeads(SpaceHeads):
    """Numbers of state spaces, and what multipliers there are."""

    normed: bool = False  # what a state space makes
    norm_first: bool = False  # before its gate
    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    space_in: float = 1.0
    space_out: float = 1.0
    gate: float = 1.0
    down: float = 1.0
    parts: tuple[float, ...] = (1.0,) * 5  # of its products: the gate, what is scanned, written and read, time steps

    @property
    def convolved(self) -> NDArray[np.float64]:
        """By what each number that is convolved is multiplied: [channels]."""
        counts = (self.inner, self.groups * self.size, self.groups * self.size)
        return self.space_in * np.repeat(self.parts[1:4], counts)


# What GGUF files have a weight multiplied by. A bias is added before what is made is multiplied, but after x is.
FACTORS: dict[str, Callable[[ModelConfig], Any]] = {
    "embedding.weight": lambda c: c.scales.embedding,
    "output.weight": lambda c: c.scales.output,
    "layers.{}.attn_q.weight": lambda c: c.own.attention_in,
    "layers.{}.attn_k.weight": lambda c: c.own.attention_in * c.own.key,
    "layers.{}.attn_k.bias": lambda c: c.own.key,
    "layers.{}.attn_v.weight": lambda c: c.own.attention_in,
    "layers.{}.attn_o.weight": lambda c: c.own.attention_out,
    "layers.{}.ssm_z.weight": lambda c: c.own.space_in * c.own.parts[0],
    "layers.{}.ssm_xbc.weight": lambda c: c.own.convolved[:, None],
    "layers.{}.ssm_step.weight": lambda c: c.own.space_in * c.own.parts[4],
    "layers.{}.ssm_o.weight": lambda c: c.own.space_out,
    **{f"layers.{{}}.ffn_gate.{kind}": lambda c: c.own.gate for kind in ("weight", "bias")},
    **{f"layers.{{}}.ffn_down.{kind}": lambda c: c.own.down for kind in ("weight", "bias")},
}


def _factored(names: Names) -> Names:
    """Names with what the tensor is multiplied by in GGUF files; of taps, what both kinds of files lack."""
    if names.ours == "layers.{}.ssm_conv.weight":
        gguf, hf = (replace(form_in(names, kind), times=lambda c: 1 / c.own.convolved) for kind in ("gguf", "hf"))
        return Names(names.ours, gguf, hf)
    if names.ours not in FACTORS:
        return names
    return names._replace(gguf=replace(form_in(names, "gguf"), times=FACTORS[names.ours]))


PLAIN: Table = changed(
    COMMON,
    Names("output_norm.weight", "output_norm.weight", "model.final_layernorm.weight"),
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm", f"{LAYER}pre_ff_layernorm.weight"),
    *(
        names
        for part in ("gate", "up", "down")
        for names in with_bias(f"layers.{{}}.ffn_{part}", f"blk.{{}}.ffn_{part}", f"{LAYER}feed_forward.{part}_proj")
    ),
    *space_names(f"{LAYER}mamba."),
)
NAMES: Table = tuple(_factored(names) for names in PLAIN)
