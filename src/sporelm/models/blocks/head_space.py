"""A selective state space of heads whose writing, reading and time steps are made of convolved values (PFN 2025).

Mamba 1 makes them so, and Mamba 2 has one rate of fading for each head; PLaMo 2 does both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.mamba2_mixer import SpaceHeads
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True)
class RankedHeads(SpaceHeads):
    """Numbers of such spaces; the record of their family."""

    rank: int = 0  # of the matrix that makes time steps


class HeadSpace:
    """o(scan(c) * silu(z(x))) with c = silu(conv(x(x))), in the place of attention.

    What writes, what reads and what time steps are made of are norms of products with c.
    """

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.numbers: RankedHeads = config.own
        n, width = self.numbers, config.width
        self.x = Linear(f"{name}.ssm_x", n.inner, width)
        self.z = Linear(f"{name}.ssm_z", n.inner, width)
        parts = {"write": n.size, "read": n.size, "rank": n.rank}
        self.made = [Linear(f"{name}.ssm_{part}", size, n.inner) for part, size in parts.items()]
        self.norms = [RMSNorm(f"{name}.ssm_{part}_norm", size, config.eps) for part, size in parts.items()]
        self.step = Linear(f"{name}.ssm_dt", n.heads, n.rank)
        self.o = Linear(f"{name}.ssm_o", width, n.inner)
        self.taps = Param(f"{name}.ssm_conv.weight", (n.taps, n.inner), plain=True)
        self.vectors = [Param(f"{name}.{part}", (n.heads,)) for part in ("ssm.decay", "ssm.skip", "ssm_dt.bias")]
        self.memory = State(((n.taps - 1, n.inner), (n.heads * n.size, n.head_dim)))

    def params(self) -> list[Param]:
        parts: list[Linear | RMSNorm] = [self.x, self.z, *self.made, *self.norms, self.step, self.o]
        return [*(param for part in parts for param in part.params()), self.taps, *self.vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        values, z = apply_linears(x, weights, self.x, self.z)
        whose = (step.starts, step.lengths, step.states)
        values = ops.causal_conv1d(values, weights[self.taps.name], None, cache[0], *whose)
        made = apply_linears(values, weights, *self.made)
        write, read, rank = (norm(each, weights) for norm, each in zip(self.norms, made, strict=True))
        vectors, dt = [weights[param.name] for param in self.vectors], self.step(rank, weights)
        scanned = ops.ssm_scan(ops.join_columns(values, write, read), dt, *vectors, cache[1], *whose, groups=1)
        return self.o(ops.silu_mul(z, scanned), weights)
