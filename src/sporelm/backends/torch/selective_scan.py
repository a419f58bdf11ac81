"""Mamba 1's selective scan through plain torch: row by row, all channels at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence


@implements(ops.selective_scan)
def selective_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    decay: Tensor,
    skip: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Tensor:
    step, out = softplus(dt), torch.empty_like(x)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        for row in range(start, stop):
            held *= torch.exp(step[row] * decay)
            held += b[row].unsqueeze(1) * (step[row] * x[row])
            out[row] = c[row] @ held
    return out + skip * x
