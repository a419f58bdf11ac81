"""RWKV-6's time mix: linear attention whose channels fade as each token says, in the place of attention.

Peng et al. 2024, "Eagle and Finch".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.linear import Linear, products
from sporelm.models.blocks.memory import State
from sporelm.models.blocks.token_shift import LowRank, shifted
from sporelm.models.inputs import StepInputs
from sporelm.weights.config import ModelConfig
from sporelm.weights.names import Param

MIXES = "wkvrg"  # what rows are mixed for: decays, keys, values, reading, the gate


@dataclass(frozen=True)
class FinchNumbers:
    """Numbers of a model of such mixes; the record of its family (`own`)."""

    mix: int = 0  # the rank of what makes mixes, and of what makes decays
    decay: int = 0
    eps: float | None = None  # of the norm of heads
    halved: int = 0  # rows are halved after so many layers, and what is added to them is stored so; 0: never


class TimeMix6:
    """o(norm(wkv(...)) * silu(gate)); by what rows are mixed depends on the row."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        own: FinchNumbers = config.own
        width, self.dim, self.eps = config.width, config.head_dim, own.eps
        self.first = Param(f"{name}.mix_x.weight", (width,))
        self.mixes = [Param(f"{name}.mix_{part}.weight", (width,)) for part in MIXES]
        self.more = [LowRank(f"{name}.mix_{part}_more", width, own.mix, width, bias=False) for part in MIXES]
        self.r, self.k, self.v, self.g, self.o = (Linear(f"{name}.wkv_{part}", width, width) for part in "rkvgo")
        self.decay = LowRank(f"{name}.wkv_decay", width, own.decay, width, "tanh")
        self.bonus = Param(f"{name}.wkv.bonus", (config.heads, config.head_dim), plain=True)
        self.norm = [Param(f"{name}.wkv_norm.{kind}", (width,)) for kind in ("weight", "bias")]
        self.memory = State(((1, width), (width, config.head_dim)))

    def params(self) -> list[Param]:
        narrow = [param for part in (*self.more, self.decay) for param in part.params()]
        matrices = [param for part in (self.r, self.k, self.v, self.g, self.o) for param in part.params()]
        return [self.first, *self.mixes, *narrow, *matrices, self.bonus, *self.norm]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        row, state = cache
        delta = shifted(x, step, weights, row)
        few = products(ops.mix_rows(x, delta, (weights[self.first.name],)), weights, *(each.down for each in self.more))
        more = tuple(each.up(ops.softcap(part, cap=1.0), weights) for each, part in zip(self.more, few, strict=True))
        mixes = tuple(weights[mix.name] for mix in self.mixes)
        mixed = dict(zip(MIXES, ops.mix_rows(x, delta, mixes, more), strict=True))
        parts = {"r": self.r, "k": self.k, "v": self.v, "g": self.g}
        r, k, v, gate = (part(mixed[name], weights) for name, part in parts.items())
        whose = step.starts, step.lengths, step.states
        made = ops.wkv6(r, self.decay(mixed["w"], weights), k, v, weights[self.bonus.name], state, *whose)
        norm = (weights[param.name] for param in self.norm)
        return self.o(ops.silu_mul(gate, ops.group_norm(made, *norm, group=self.dim, eps=self.eps)), weights)
