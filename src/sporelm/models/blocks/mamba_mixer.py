"""The selective state space of Mamba 1: each channel's state fades at rates of its own (Gu, Dao 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.rms_norm import ONES, ones_table
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True)
class SpaceChannels:
    """Numbers of a model of such spaces; the record of its family (`own`)."""

    taps: int  # of the convolution, the row's own included
    size: int  # of a channel's state
    rank: int  # of the matrix that makes time steps
    inner: int = 0  # channels: GGUF files say this, folders this or the next
    expand: int = 0  # inner, in widths of the model
    bias: bool = False  # of the products with the rows and into them
    taps_bias: bool = True
    norms: str = ""  # of time steps, of what writes and of what reads: "weighted" (Jamba), "bare" (Falcon-Mamba), none
    eps: float | None = None  # of these norms, if not that of the others
    attention: frozenset[int] = frozenset()  # the layers that are attention

    def tables(self) -> dict[str, np.ndarray]:
        """float32 ones for bare norms."""
        return ones_table(self.rank) | ones_table(self.size) if self.norms == "bare" else {}


class MambaMixer:
    """o(scan(c) * silu(z(x))) with c = silu(conv(x(x))), in the place of attention.

    What writes, what reads and the time steps are made of c.
    """

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.numbers: SpaceChannels = config.own
        n, width = self.numbers, config.width
        self.x = Linear(f"{name}.ssm_x", n.inner, width, bias=n.bias)
        self.z = Linear(f"{name}.ssm_z", n.inner, width, bias=n.bias)
        self.made = {part: Linear(f"{name}.ssm_{part}", size, n.inner) for part, size in self._parts().items()}
        self.dt = Linear(f"{name}.ssm_dt", n.inner, n.rank, bias=True)
        self.o = Linear(f"{name}.ssm_o", width, n.inner, bias=n.bias)
        self.taps = Param(f"{name}.ssm_conv.weight", (n.taps, n.inner), plain=True)
        self.taps_bias = [Param(f"{name}.ssm_conv.bias", (n.inner,))] if n.taps_bias else []
        self.decay = Param(f"{name}.ssm.decay", (n.size, n.inner), plain=True)
        self.skip = Param(f"{name}.ssm.skip", (n.inner,))
        weighted = self._parts() if n.norms == "weighted" else {}
        self.norms = {part: Param(f"{name}.ssm_{part}_norm.weight", (size,)) for part, size in weighted.items()}
        self.eps = config.eps if n.eps is None else n.eps
        self.memory = State(((n.taps - 1, n.inner), (n.size, n.inner)))

    def _parts(self) -> dict[str, int]:
        return {"rank": self.numbers.rank, "write": self.numbers.size, "read": self.numbers.size}

    def params(self) -> list[Param]:
        linears = (self.x, self.z, *self.made.values(), self.dt, self.o)
        matrices = [param for linear in linears for param in linear.params()]
        return [*matrices, self.taps, *self.taps_bias, self.decay, self.skip, *self.norms.values()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        values, z = apply_linears(x, weights, self.x, self.z)
        whose = (step.starts, step.lengths, step.states)
        bias = next((weights[param.name] for param in self.taps_bias), None)
        values = ops.causal_conv1d(values, weights[self.taps.name], bias, cache[0], *whose)
        rank, write, read = self._normed(apply_linears(values, weights, *self.made.values()), weights)
        vectors = weights[self.decay.name], weights[self.skip.name]
        made = ops.selective_scan(values, self.dt(rank, weights), write, read, *vectors, cache[1], *whose)
        return self.o(ops.silu_mul(z, made), weights)

    def _normed(self, made: list[Any], weights: Mapping[str, Any]) -> list[Any]:
        if not self.numbers.norms:
            return made
        bare = {part: f"{ONES}{size}" for part, size in self._parts().items()}
        names = [self.norms[part].name if self.norms else bare[part] for part in self.made]
        return [ops.rms_norm(each, weights[name], eps=self.eps) for each, name in zip(made, names, strict=True)]
