"""Causal convolution through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence


@implements(ops.causal_conv1d)
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    silu: bool = True,
) -> Tensor:
    out = torch.empty_like(x)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        window = torch.cat((held, x[start:stop]))
        total = weight[0] * window[: stop - start]
        for tap in range(1, len(weight)):
            total = total + weight[tap] * window[tap : tap + stop - start]
        out[start:stop] = total if bias is None else total + bias
        held.copy_(window[stop - start :])
    return out / (1 + torch.exp(-out)) if silu else out
