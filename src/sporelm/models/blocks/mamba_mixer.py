"""The selective state space of Mamba 1: the state of each channel decays at its own rates (Gu, Dao 2023)."""

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
class MambaShape:
    """Sizes of the Mamba mixers of a model.

    conv_kernel     rows that the convolution reads, including the row's own
    state_size      state values for each channel
    time_step_rank  rank of the projection of time steps
    inner_size      channels
    expand          the same in widths of the model
    norms           of time steps, B and C: "weighted" (Jamba), "bare" (Falcon-Mamba), or "" for none
    norm_eps        of these norms, if it differs from the model's
    """

    conv_kernel: int
    state_size: int
    time_step_rank: int
    inner_size: int = 0
    expand: int = 0
    has_bias: bool = False
    has_conv_bias: bool = True
    norms: str = ""
    norm_eps: float | None = None

    def tables(self) -> dict[str, np.ndarray]:
        """Return the weights of bare norms: ones."""
        return ones_table(self.time_step_rank) | ones_table(self.state_size) if self.norms == "bare" else {}


class MambaMixer:
    """o(scan(c) * silu(z(x))) with c = silu(conv(x(x))), in place of attention. Time steps, B and C are projections of
    c."""

    def __init__(self, name: str, config: ModelConfig, shape: MambaShape) -> None:
        self.shape = shape
        inner, width = shape.inner_size, config.width
        self.x = Linear(f"{name}.ssm_x", inner, width, bias=shape.has_bias)
        self.z = Linear(f"{name}.ssm_z", inner, width, bias=shape.has_bias)
        # The low-rank input of time steps, then B, which writes to the state, and C, which reads it.
        self.sizes = {"rank": shape.time_step_rank, "write": shape.state_size, "read": shape.state_size}
        self.projections = {part: Linear(f"{name}.ssm_{part}", size, inner) for part, size in self.sizes.items()}
        self.dt = Linear(f"{name}.ssm_dt", inner, shape.time_step_rank, bias=True)
        self.o = Linear(f"{name}.ssm_o", width, inner, bias=shape.has_bias)
        self.taps = Param(f"{name}.ssm_conv.weight", (shape.conv_kernel, inner), plain=True)
        self.taps_bias = [Param(f"{name}.ssm_conv.bias", (inner,))] if shape.has_conv_bias else []
        self.decay = Param(f"{name}.ssm.decay", (shape.state_size, inner), plain=True)
        self.skip = Param(f"{name}.ssm.skip", (inner,))
        weighted = self.sizes if shape.norms == "weighted" else {}
        self.norms = {part: Param(f"{name}.ssm_{part}_norm.weight", (size,)) for part, size in weighted.items()}
        self.eps = config.eps if shape.norm_eps is None else shape.norm_eps
        self.memory = State(((shape.conv_kernel - 1, inner), (shape.state_size, inner)))

    def params(self) -> list[Param]:
        linears = (self.x, self.z, *self.projections.values(), self.dt, self.o)
        matrices = [param for linear in linears for param in linear.params()]
        return [*matrices, self.taps, *self.taps_bias, self.decay, self.skip, *self.norms.values()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        values, z = apply_linears(x, weights, self.x, self.z)
        sequences = (step.starts, step.lengths, step.states)
        bias = next((weights[param.name] for param in self.taps_bias), None)
        values = ops.causal_conv1d(values, weights[self.taps.name], bias, cache[0], *sequences)
        rank, write, read = self._normed(apply_linears(values, weights, *self.projections.values()), weights)
        vectors = weights[self.decay.name], weights[self.skip.name]
        scanned = ops.selective_scan(values, self.dt(rank, weights), write, read, *vectors, cache[1], *sequences)
        return self.o(ops.silu_mul(z, scanned), weights)

    def _normed(self, rows: list[Any], weights: Mapping[str, Any]) -> list[Any]:
        if not self.shape.norms:
            return rows
        bare = {part: f"{ONES}{size}" for part, size in self.sizes.items()}
        names = [self.norms[part].name if self.norms else bare[part] for part in self.sizes]
        return [ops.rms_norm(each, weights[name], eps=self.eps) for each, name in zip(rows, names, strict=True)]
