"""Mamba 2's scan through plain torch: row by row, all heads at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence


@implements(ops.ssm_scan)
def ssm_scan(
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    skip: Tensor,
    bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    groups: int,
    low: float = 0.0,
    high: float = torch.inf,
) -> Tensor:
    heads, head_dim = len(decay), state.shape[2]
    size = state.shape[1] // heads
    values, *others = x.split((heads * head_dim, groups * size, groups * size), dim=1)
    v = values.unflatten(1, (heads, head_dim))
    write, read = (each.unflatten(1, (groups, size)).repeat_interleave(heads // groups, dim=1) for each in others)
    step = softplus(dt + bias).clamp(low, high)
    kept, out = torch.exp(step * decay), torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, size, head_dim)
        for row in range(start, stop):
            s *= kept[row, :, None, None]
            s += write[row].unsqueeze(2) * (step[row, :, None] * v[row]).unsqueeze(1)
            out[row] = torch.einsum("hn,hnp->hp", read[row], s)
    return (out + skip[:, None] * v).flatten(1)
