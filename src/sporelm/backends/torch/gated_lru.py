"""Griffin's gated linear recurrent unit through plain torch: row by row, all channels at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence
from sporelm.ops.gated_lru import SHARPNESS


@implements(ops.gated_lru)
def gated_lru(
    x: Tensor,
    recurrence_gate: Tensor,
    input_gate: Tensor,
    decay: Tensor,
    recurrence_bias: Tensor,
    input_bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Tensor:
    faded = SHARPNESS * softplus(decay) * (recurrence_gate + recurrence_bias.flatten()).sigmoid()
    gain, out = (1 - (2 * faded).exp()).sqrt(), torch.empty_like(x)
    for number in range(len(lengths)):
        if 0 < int(lengths[number]) == int(starts[number + 1]) - int(starts[number]):
            gain[int(starts[number])] = 1
    given = gain * x * (input_gate + input_bias.flatten()).sigmoid()
    for held, start, stop in each_sequence(state, starts, lengths, states):
        for row in range(start, stop):
            held.view(-1).mul_(faded[row].exp()).add_(given[row])
            out[row] = held.view(-1)
    return out
