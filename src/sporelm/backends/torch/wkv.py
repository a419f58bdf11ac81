"""RWKV's states through plain torch: row by row, all heads at once."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence
from sporelm.ops.wkv import MAX_DECAY, MIN_LENGTH


@implements(ops.wkv7)
def wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    k_k: Tensor,
    k_a: Tensor,
    bonus: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> tuple[Tensor, Tensor]:
    heads, dim = bonus.shape
    r, w, k, v, a = (each.unflatten(1, (heads, -1)) for each in (r, w, k, v, a))
    rate, decay = a.sigmoid(), torch.exp(-MAX_DECAY * w.sigmoid())
    unit = k * k_k.view(heads, dim)
    unit = unit / unit.square().sum(dim=-1, keepdim=True).sqrt().clamp(min=MIN_LENGTH)
    key, out = k * (1 + (rate - 1) * k_a.view(heads, dim)), torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, dim, -1)
        for row in range(start, stop):
            known = torch.einsum("hk,hkv->hv", unit[row], s)
            s *= decay[row, :, :, None]
            s += key[row].unsqueeze(2) * v[row].unsqueeze(1)
            s -= (unit[row] * rate[row]).unsqueeze(2) * known.unsqueeze(1)
            out[row] = torch.einsum("hk,hkv->hv", r[row], s)
    alone = (r * key * bonus).sum(dim=-1, keepdim=True) * v
    return out.flatten(1), alone.flatten(1)


@implements(ops.wkv6)
def wkv6(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, bonus: Tensor, state: Tensor, starts: Any, lengths: Any, states: Any
) -> Tensor:
    heads, dim = bonus.shape
    r, w, k, v = (each.unflatten(1, (heads, -1)) for each in (r, w, k, v))
    decay, out = torch.exp(-torch.exp(w)), torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, dim, -1)
        for row in range(start, stop):
            out[row] = torch.einsum("hk,hkv->hv", r[row], s)
            s *= decay[row, :, :, None]
            s += k[row].unsqueeze(2) * v[row].unsqueeze(1)
    return (out + (r * bonus * k).sum(dim=-1, keepdim=True) * v).flatten(1)
