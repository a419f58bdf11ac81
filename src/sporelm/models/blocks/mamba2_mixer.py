"""The selective state space of Mamba 2: a state that decays, is updated by each row and read by it (Dao, Gu 2024)."""

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
class Mamba2Shape:
    """Sizes of the Mamba 2 mixers of a model.

    conv_kernel    rows that the convolution reads, including the row's own
    num_groups     of heads that share B and C
    state_size     state values for each channel
    inner_size     channels of all heads
    expand         the same in widths of the model
    min_time_step, max_time_step   bounds of time steps
    """

    conv_kernel: int
    num_heads: int
    num_groups: int
    state_size: int
    inner_size: int = 0
    head_dim: int = 0
    expand: int = 0
    has_bias: bool = False
    has_conv_bias: bool = True
    min_time_step: float = 0.0
    max_time_step: float = float("inf")

    @property
    def conv_channels(self) -> int:
        """The channels that are convolved: values, B and C."""
        return self.inner_size + 2 * self.num_groups * self.state_size


class Mamba2Mixer:
    """o(norm(scan(silu(conv(xbc(x)))) * silu(z(x)))), in place of attention.

    first     "norm" or "gate", whichever is applied first; "": there is no norm
    factors   of z and of the time steps
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        shape: Mamba2Shape,
        *,
        first: str = "gate",
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.shape, self.first, self.factors = shape, first, factors
        inner, heads, width = shape.inner_size, shape.num_heads, config.width
        self.z = Linear(f"{name}.ssm_z", inner, width, bias=shape.has_bias)
        self.xbc = Linear(f"{name}.ssm_xbc", shape.conv_channels, width, bias=shape.has_bias)
        self.step = Linear(f"{name}.ssm_step", heads, width, bias=shape.has_bias)
        self.o = Linear(f"{name}.ssm_o", width, inner, bias=shape.has_bias)
        self.taps = Param(f"{name}.ssm_conv.weight", (shape.conv_kernel, shape.conv_channels), plain=True)
        self.taps_bias = [Param(f"{name}.ssm_conv.bias", (shape.conv_channels,))] if shape.has_conv_bias else []
        vectors = ("ssm.decay", "ssm.skip", "ssm_dt.bias")
        self.vectors = [Param(f"{name}.{part}", (heads,)) for part in vectors]
        self.group_size = inner // shape.num_groups
        norm_shape = (shape.num_groups, self.group_size)
        self.norm = [Param(f"{name}.ssm_norm.weight", norm_shape, plain=True)] if first else []
        self.eps = config.eps
        state = (heads * shape.state_size, inner // heads)
        self.memory = State(((shape.conv_kernel - 1, shape.conv_channels), state))

    def params(self) -> list[Param]:
        linears = (self.z, self.xbc, self.step, self.o)
        matrices = [param for linear in linears for param in linear.params()]
        return [*matrices, self.taps, *self.taps_bias, *self.vectors, *self.norm]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        z, xbc, dt = apply_linears(x, weights, self.z, self.xbc, self.step)
        z, dt = (scale_rows(each, factor) for each, factor in zip((z, dt), self.factors, strict=True))
        sequences, shape = (step.starts, step.lengths, step.states), self.shape
        bias = next((weights[param.name] for param in self.taps_bias), None)
        xbc = ops.causal_conv1d(xbc, weights[self.taps.name], bias, cache[0], *sequences)
        vectors = [weights[param.name] for param in self.vectors]
        limits = {"low": shape.min_time_step, "high": shape.max_time_step}
        scanned = ops.ssm_scan(xbc, dt, *vectors, cache[1], *sequences, groups=shape.num_groups, **limits)
        if not self.norm:
            return self.o(ops.activate_mul(z, scanned, kind="silu"), weights)
        options: dict[str, Any] = {"eps": self.eps, "group": self.group_size, "first": self.first}
        return self.o(ops.gated_rms_norm(scanned, z, weights[self.norm[0].name], **options), weights)
