"""Token shift: layers of RWKV mix each row with the previous one (Peng et al. 2023)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

SHIFT = "token_shift"  # float32 [2, width] among the weights: the taps of the previous row minus the row


def shift_table(width: int) -> dict[str, np.ndarray]:
    """Return the table that `shift_tokens` reads, for rows of this width."""
    return {SHIFT: np.repeat(np.array([[1], [-1]], np.float32), width, axis=1)}


def previous_row_state(width: int) -> State:
    """Return the state of a block that reads the previous row of each: the last row."""
    return State(((1, width),))


def shift_tokens(x: Any, step: StepInputs, weights: Mapping[str, Any], row: Any) -> Any:  # x [tokens, width]
    """Return the previous row of each, or zeros, minus the row itself: float32 [tokens, width]."""
    return ops.causal_conv1d(x, weights[SHIFT], None, row, step.starts, step.lengths, step.states, silu=False)


class LowRankProjection:
    """up(activation(down(x))) through `rank` channels; the bias is that of `up`."""

    def __init__(self, name: str, width: int, rank: int, out: int, activation: str = "", *, bias: bool = True) -> None:
        self.down, self.up = Linear(f"{name}_a", rank, width), Linear(name, out, rank, bias=bias)
        self.activation = activation

    def params(self) -> list[Param]:
        return [*self.down.params(), *self.up.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        few = self.down(x, weights)
        if self.activation == "tanh":
            few = ops.softcap(few, cap=1.0)
        elif self.activation:
            few = ops.activate(few, kind=self.activation)
        return self.up(few, weights)
