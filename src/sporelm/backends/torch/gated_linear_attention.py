"""Gated linear attention through plain torch: row by row, all heads at once."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence


@implements(ops.gated_linear_attention)
def gated_linear_attention(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    heads: int,
    key_heads: int,
) -> Tensor:
    r, w = (each.unflatten(1, (heads, -1)) for each in (r, w))
    k, v = (each.unflatten(1, (key_heads, -1)).repeat_interleave(heads // key_heads, dim=1) for each in (k, v))
    decay = torch.exp(-torch.exp(w))
    key, out = k * (1 - decay), torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, r.shape[2], -1)
        for row in range(start, stop):
            s *= decay[row, :, :, None]
            s += key[row].unsqueeze(2) * v[row].unsqueeze(1)
            out[row] = torch.einsum("hk,hkv->hv", r[row], s)
    return (out * r.shape[2] ** -0.5).flatten(1)
