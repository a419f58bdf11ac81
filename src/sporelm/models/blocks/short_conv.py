"""The gated short convolution over a few rows, with an input gate and an output gate (LFM2, Liquid AI 2025)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class ShortConv:
    """o(c(x) * conv(b(x) * x(x))) over `conv_kernel` rows, in place of attention."""

    def __init__(self, name: str, config: ModelConfig, conv_kernel: int) -> None:
        width = config.width
        self.b, self.c, self.x = (Linear(f"{name}.conv_{part}", width, width) for part in "bcx")
        self.o = Linear(f"{name}.conv_o", width, width)
        self.conv = Param(f"{name}.short_conv.weight", (conv_kernel, width), plain=True)
        self.memory = State(((conv_kernel - 1, width),))

    def params(self) -> list[Param]:
        return [*(param for linear in (self.b, self.c, self.x, self.o) for param in linear.params()), self.conv]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        gate, output_gate, rows = apply_linears(x, weights, self.b, self.c, self.x)
        sequences = step.starts, step.lengths, step.states
        gated = ops.activate_mul(gate, rows, kind="linear")
        mixed = ops.causal_conv1d(gated, weights[self.conv.name], None, cache[0], *sequences, silu=False)
        return self.o(ops.activate_mul(output_gate, mixed, kind="linear"), weights)
