"""Lightning attention through plain torch: row by row, all heads at once."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence


@implements(ops.lightning_attention)
def lightning_attention(x: Tensor, decay: Tensor, state: Tensor, starts: Any, lengths: Any, states: Any) -> Tensor:
    heads, dim = len(decay), state.shape[2]
    q, k, v = x.unflatten(1, (heads, 3, dim)).unbind(2)
    out = torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, dim, dim)
        for row in range(start, stop):
            s *= decay[:, None, None]
            s += k[row].unsqueeze(2) * v[row].unsqueeze(1)
            out[row] = torch.einsum("hk,hkv->hv", q[row], s)
    return out.flatten(1)
