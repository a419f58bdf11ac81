"""Griffin's recurrent block: a convolution and a gated linear unit, beside a gate (De et al. 2024)."""

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
class LruNumbers:
    """Numbers of a model of such blocks; the record of its family (`own`)."""

    taps: int  # of the convolution, the row's own included
    width: int | None = None  # channels, if not the model's width
    attention: frozenset[int] = frozenset()  # the layers that are attention


class GatedRecurrence:
    """o(lru(conv(x(x))) * gelu(y(x))), in the place of attention; gates are made head by head of what is convolved."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        numbers: LruNumbers = config.own
        channels, heads = numbers.width or config.width, config.heads
        each = channels // heads
        self.x, self.y = (Linear(f"{name}.lru_{part}", channels, config.width, bias=True) for part in "xy")
        self.o = Linear(f"{name}.lru_o", config.width, channels, bias=True)
        self.taps = Param(f"{name}.lru_conv.weight", (numbers.taps, channels), plain=True)
        self.taps_bias = Param(f"{name}.lru_conv.bias", (channels,))
        parts = ("fade", "take")
        self.gates = [Param(f"{name}.lru_{part}.weight", (heads, each, each)) for part in parts]
        self.shifts = [Param(f"{name}.lru_{part}.bias", (heads, each), plain=True) for part in parts]
        self.decay = Param(f"{name}.lru.decay", (channels,))
        self.memory = State(((numbers.taps - 1, channels), (heads, each)))

    def params(self) -> list[Param]:
        linears = [param for linear in (self.x, self.y, self.o) for param in linear.params()]
        return [*linears, self.taps, self.taps_bias, *self.gates, *self.shifts, self.decay]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        values, opened = apply_linears(x, weights, self.x, self.y)
        whose, taps = (step.starts, step.lengths, step.states), (weights[self.taps.name], weights[self.taps_bias.name])
        values = ops.causal_conv1d(values, *taps, cache[0], *whose, silu=False)
        gates = [ops.linear_heads(values, weights[gate.name]) for gate in self.gates]
        shifts = [weights[shift.name] for shift in self.shifts]
        made = ops.gated_lru(values, *gates, weights[self.decay.name], *shifts, cache[1], *whose)
        return self.o(ops.activate_mul(opened, made, kind="gelu_tanh"), weights)
