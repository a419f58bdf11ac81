"""PLaMo 2's selective state space (Preferred Networks 2025).

Time steps, B and C are projections of convolved values, as in Mamba 1. Each head has one decay, as in Mamba 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.mamba2_mixer import Mamba2Shape
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True)
class Plamo2MambaShape(Mamba2Shape):
    """Sizes of the mixers of a model.

    time_step_rank   rank of the projection of time steps
    """

    time_step_rank: int = 0


class Plamo2MambaMixer:
    """o(scan(c) * silu(z(x))) with c = silu(conv(x(x))), in place of attention. B, C and the low-rank input of time
    steps are normed projections of c."""

    def __init__(self, name: str, config: ModelConfig, shape: Plamo2MambaShape) -> None:
        inner, heads, width = shape.inner_size, shape.num_heads, config.width
        self.x = Linear(f"{name}.ssm_x", inner, width)
        self.z = Linear(f"{name}.ssm_z", inner, width)
        # B, which writes to the state; C, which reads it; the low-rank input of time steps.
        sizes = {"write": shape.state_size, "read": shape.state_size, "rank": shape.time_step_rank}
        self.projections = [Linear(f"{name}.ssm_{part}", size, inner) for part, size in sizes.items()]
        self.norms = [RMSNorm(f"{name}.ssm_{part}_norm", size, config.eps) for part, size in sizes.items()]
        self.step = Linear(f"{name}.ssm_dt", heads, shape.time_step_rank)
        self.o = Linear(f"{name}.ssm_o", width, inner)
        self.taps = Param(f"{name}.ssm_conv.weight", (shape.conv_kernel, inner), plain=True)
        self.vectors = [Param(f"{name}.{part}", (heads,)) for part in ("ssm.decay", "ssm.skip", "ssm_dt.bias")]
        self.memory = State(((shape.conv_kernel - 1, inner), (heads * shape.state_size, shape.head_dim)))

    def params(self) -> list[Param]:
        parts: list[Linear | RMSNorm] = [self.x, self.z, *self.projections, *self.norms, self.step, self.o]
        return [*(param for part in parts for param in part.params()), self.taps, *self.vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        values, z = apply_linears(x, weights, self.x, self.z)
        sequences = (step.starts, step.lengths, step.states)
        values = ops.causal_conv1d(values, weights[self.taps.name], None, cache[0], *sequences)
        rows = apply_linears(values, weights, *self.projections)
        write, read, rank = (norm(each, weights) for norm, each in zip(self.norms, rows, strict=True))
        vectors, dt = [weights[param.name] for param in self.vectors], self.step(rank, weights)
        scanned = ops.ssm_scan(ops.join_columns(values, write, read), dt, *vectors, cache[1], *sequences, groups=1)
        return self.o(ops.silu_mul(z, scanned), weights)
