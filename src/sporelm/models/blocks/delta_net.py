"""The gated delta net: a memory of keys and values that decays and is corrected row by row (Yang et al. 2024)."""

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
class DeltaHeads:
    """Numbers of a model whose layers are gated delta nets but for a few; the record of its family (`own`)."""

    taps: int  # of the convolution, the row's own included
    key_heads: int
    heads: int  # of values; several may share a key head
    key_dim: int
    value_dim: int = 0
    inner: int = 0  # numbers of all values: files say this or the one before
    interval: int = 4  # every so many layers one is attention
    attention: frozenset[int] = frozenset()  # the layers that are
    order: str = "each"  # which key head is whose, as `ops.gated_delta_rule` has it

    @property
    def channels(self) -> int:
        """Numbers of a row's queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.inner


class DeltaNet:
    """o(norm(delta(silu(conv(qkv(x))))) * silu(z(x))), in the place of attention."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.numbers: DeltaHeads = config.own
        inner, heads, channels = self.numbers.inner, self.numbers.heads, self.numbers.channels
        self.qkv = Linear(f"{name}.delta_qkv", channels, config.width)
        self.z = Linear(f"{name}.delta_z", inner, config.width)
        self.beta = Linear(f"{name}.delta_beta", heads, config.width)
        self.alpha = Linear(f"{name}.delta_alpha", heads, config.width)
        self.o = Linear(f"{name}.delta_o", config.width, inner)
        self.taps = Param(f"{name}.delta_conv.weight", (self.numbers.taps, channels), plain=True)
        self.decay, self.bias = Param(f"{name}.delta.decay", (heads,)), Param(f"{name}.delta_dt.bias", (heads,))
        self.norm, self.eps = Param(f"{name}.delta_norm.weight", (self.numbers.value_dim,)), config.eps
        kept = heads * self.numbers.key_dim, self.numbers.value_dim
        self.memory = State(((self.numbers.taps - 1, channels), kept))

    def params(self) -> list[Param]:
        linears = (self.qkv, self.z, self.beta, self.alpha, self.o)
        vectors = [self.taps, self.decay, self.bias, self.norm]
        return [*(param for linear in linears for param in linear.params()), *vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        taps, decay, bias, norm = (weights[param.name] for param in (self.taps, self.decay, self.bias, self.norm))
        qkv, z, beta, alpha = apply_linears(x, weights, self.qkv, self.z, self.beta, self.alpha)
        whose, numbers = (step.starts, step.lengths, step.states), self.numbers
        qkv = ops.causal_conv1d(qkv, taps, None, cache[0], *whose)
        options: dict[str, Any] = {"key_heads": numbers.key_heads, "order": numbers.order}
        made = ops.gated_delta_rule(qkv, alpha, beta, decay, bias, cache[1], *whose, **options)
        return self.o(ops.gated_rms_norm(made, z, norm, eps=self.eps, group=numbers.value_dim, first="norm"), weights)
