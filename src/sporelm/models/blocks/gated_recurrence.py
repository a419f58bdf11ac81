"""Griffin's recurrent block: a convolution and a gated linear recurrence in parallel with a gate (De et al. 2024)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class GatedRecurrence:
    """o(lru(conv(x(x))) * gelu(y(x))), in place of attention; the gates of the recurrence are projections of each head
    of the convolved rows."""

    def __init__(self, name: str, config: ModelConfig, lru_width: int, conv_kernel: int) -> None:
        channels, heads = lru_width, config.heads
        each = channels // heads
        self.x, self.y = (Linear(f"{name}.lru_{part}", channels, config.width, bias=True) for part in "xy")
        self.o = Linear(f"{name}.lru_o", config.width, channels, bias=True)
        self.conv = Param(f"{name}.lru_conv.weight", (conv_kernel, channels), plain=True)
        self.conv_bias = Param(f"{name}.lru_conv.bias", (channels,))
        parts = ("fade", "take")
        self.gates = [Param(f"{name}.lru_{part}.weight", (heads, each, each)) for part in parts]
        self.gate_biases = [Param(f"{name}.lru_{part}.bias", (heads, each), plain=True) for part in parts]
        self.decay = Param(f"{name}.lru.decay", (channels,))
        self.memory = State(((conv_kernel - 1, channels), (heads, each)))

    def params(self) -> list[Param]:
        linears = [param for linear in (self.x, self.y, self.o) for param in linear.params()]
        return [*linears, self.conv, self.conv_bias, *self.gates, *self.gate_biases, self.decay]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        values, gate = apply_linears(x, weights, self.x, self.y)
        sequences = step.starts, step.lengths, step.states
        conv = weights[self.conv.name], weights[self.conv_bias.name]
        values = ops.causal_conv1d(values, *conv, cache[0], *sequences, silu=False)
        gates = [ops.linear_heads(values, weights[each.name]) for each in self.gates]
        biases = [weights[each.name] for each in self.gate_biases]
        mixed = ops.gated_lru(values, *gates, weights[self.decay.name], *biases, cache[1], *sequences)
        return self.o(ops.activate_mul(gate, mixed, kind="gelu_tanh"), weights)
