"""Mamba 1's selective scan and Griffin's gated unit through plain torch: row after row, all channels at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm.backends.torch.recurrent import each_sequence
from sporelm.ops.gated_lru import SHARPNESS


def gated_lru(
    x: Tensor,
    fade: Tensor,
    take: Tensor,
    decay: Tensor,
    fade_bias: Tensor,
    take_bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Tensor:
    faded = SHARPNESS * softplus(decay) * (fade + fade_bias.flatten()).sigmoid()
    gain, out = (1 - (2 * faded).exp()).sqrt(), torch.empty_like(x)
    for number in range(len(lengths)):
        if 0 < int(lengths[number]) == int(starts[number + 1]) - int(starts[number]):
            gain[int(starts[number])] = 1
    given = gain * x * (take + take_bias.flatten()).sigmoid()
    for held, start, stop in each_sequence(state, starts, lengths, states):
        for row in range(start, stop):
            held.view(-1).mul_(faded[row].exp()).add_(given[row])
            out[row] = held.view(-1)
    return out


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
