"""The selective state space of Mamba 2: a state that fades, takes up each row and is read by it (Dao, Gu 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears, scale_rows
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True)
class SpaceHeads:
    """Numbers of a model of state spaces; the record of its family (`own`)."""

    taps: int  # of the convolution, the row's own included
    heads: int
    groups: int  # of heads that write and read alike
    size: int  # of a state, for each number of a head
    inner: int = 0  # numbers of all heads: files say this or the two below
    head_dim: int = 0
    expand: int = 0  # inner, in widths of the model
    bias: bool = False  # of the products
    taps_bias: bool = True
    low: float = 0.0  # between which time steps lie
    high: float = float("inf")
    attention: frozenset[int] = frozenset()  # the layers that are attention

    @property
    def channels(self) -> int:
        """Numbers of a row that are convolved: values, what writes and what reads."""
        return self.inner + 2 * self.groups * self.size


class Mamba2Mixer:
    """o(norm(scan(silu(conv(xbc(x)))) * silu(z(x)))), in the place of attention.

    first     what comes first, the "norm" or the "gate", z; "": there is no norm
    factors   by which z and the time steps are multiplied
    """

    def __init__(
        self, name: str, config: ModelConfig, *, first: str = "gate", factors: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.numbers: SpaceHeads = config.own
        self.first, self.factors = first, factors
        n, width = self.numbers, config.width
        self.z = Linear(f"{name}.ssm_z", n.inner, width, bias=n.bias)
        self.xbc = Linear(f"{name}.ssm_xbc", n.channels, width, bias=n.bias)
        self.step = Linear(f"{name}.ssm_step", n.heads, width, bias=n.bias)
        self.o = Linear(f"{name}.ssm_o", width, n.inner, bias=n.bias)
        self.taps = Param(f"{name}.ssm_conv.weight", (n.taps, n.channels), plain=True)
        self.taps_bias = [Param(f"{name}.ssm_conv.bias", (n.channels,))] if n.taps_bias else []
        vectors = ("ssm.decay", "ssm.skip", "ssm_dt.bias")
        self.vectors = [Param(f"{name}.{part}", (n.heads,)) for part in vectors]
        shape = (n.groups, n.inner // n.groups)
        self.norm = [Param(f"{name}.ssm_norm.weight", shape, plain=True)] if first else []
        self.eps = config.eps
        self.memory = State(((n.taps - 1, n.channels), (n.heads * n.size, n.inner // n.heads)))

    def params(self) -> list[Param]:
        linears = (self.z, self.xbc, self.step, self.o)
        matrices = [param for linear in linears for param in linear.params()]
        return [*matrices, self.taps, *self.taps_bias, *self.vectors, *self.norm]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        z, xbc, dt = apply_linears(x, weights, self.z, self.xbc, self.step)
        z, dt = (scale_rows(each, factor) for each, factor in zip((z, dt), self.factors, strict=True))
        whose, n = (step.starts, step.lengths, step.states), self.numbers
        bias = next((weights[param.name] for param in self.taps_bias), None)
        xbc = ops.causal_conv1d(xbc, weights[self.taps.name], bias, cache[0], *whose)
        vectors = [weights[param.name] for param in self.vectors]
        made = ops.ssm_scan(xbc, dt, *vectors, cache[1], *whose, groups=n.groups, low=n.low, high=n.high)
        if not self.norm:
            return self.o(ops.activate_mul(z, made, kind="silu"), weights)
        options: dict[str, Any] = {"eps": self.eps, "group": n.inner // n.groups, "first": self.first}
        return self.o(ops.gated_rms_norm(made, z, weights[self.norm[0].name], **options), weights)
