"""Mamba 1's selective scan through plain torch: rows one after the other, all channels at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm.backends.torch.recurrent import each_sequence


def selective_scan(
    x: Tensor,
    dt: Tensor,
    write: Tensor,
    read: Tensor,
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
            held += write[row].unsqueeze(1) * (step[row] * x[row])
            out[row] = read[row] @ held
    return out + skip * x
