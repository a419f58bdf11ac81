"""The gated delta net: a memory of keys and values that decays and is updated row by row (Yang et al. 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True)
class DeltaNetShape:
    """The shape of gated delta nets.

    conv_kernel      rows that the convolution reads, including the row's own
    num_key_heads    heads of queries and keys
    num_value_heads  heads of values; several may share a key head
    inner_size       width of the values of all heads
    head_order       which key head belongs to which value head, see `ops.gated_delta_rule`
    """

    conv_kernel: int
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int = 0
    inner_size: int = 0
    head_order: str = "each"

    @property
    def num_channels(self) -> int:
        """The width of a row's queries, keys and values together."""
        return 2 * self.num_key_heads * self.key_head_dim + self.inner_size


class DeltaNet:
    """o(norm(delta(silu(conv(qkv(x))))) * silu(z(x))), in place of attention."""

    def __init__(self, name: str, config: ModelConfig, shape: DeltaNetShape) -> None:
        inner, heads, channels = shape.inner_size, shape.num_value_heads, shape.num_channels
        self.shape = shape
        self.qkv = Linear(f"{name}.delta_qkv", channels, config.width)
        self.z = Linear(f"{name}.delta_z", inner, config.width)
        self.beta = Linear(f"{name}.delta_beta", heads, config.width)
        self.alpha = Linear(f"{name}.delta_alpha", heads, config.width)
        self.o = Linear(f"{name}.delta_o", config.width, inner)
        self.conv = Param(f"{name}.delta_conv.weight", (shape.conv_kernel, channels), plain=True)
        self.decay = Param(f"{name}.delta.decay", (heads,))
        self.bias = Param(f"{name}.delta_dt.bias", (heads,))
        self.norm = Param(f"{name}.delta_norm.weight", (shape.value_head_dim,))
        self.eps = config.eps
        state = heads * shape.key_head_dim, shape.value_head_dim
        self.memory = State(((shape.conv_kernel - 1, channels), state))

    def params(self) -> list[Param]:
        linears = (self.qkv, self.z, self.beta, self.alpha, self.o)
        vectors = [self.conv, self.decay, self.bias, self.norm]
        return [*(param for linear in linears for param in linear.params()), *vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        conv, decay, bias, norm = (weights[param.name] for param in (self.conv, self.decay, self.bias, self.norm))
        qkv, z, beta, alpha = apply_linears(x, weights, self.qkv, self.z, self.beta, self.alpha)
        sequences, shape = (step.starts, step.lengths, step.states), self.shape
        qkv = ops.causal_conv1d(qkv, conv, None, cache[0], *sequences)
        options: dict[str, Any] = {"key_heads": shape.num_key_heads, "order": shape.head_order}
        mixed = ops.gated_delta_rule(qkv, alpha, beta, decay, bias, cache[1], *sequences, **options)
        mixed = ops.gated_rms_norm(mixed, z, norm, eps=self.eps, group=shape.value_head_dim, first="norm")
        return self.o(mixed, weights)
