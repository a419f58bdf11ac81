"""The gated delta rule through plain torch: row by row, all heads at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.recurrent_state import each_sequence


@implements(ops.gated_delta_rule)
def gated_delta_rule(
    x: Tensor,
    alpha: Tensor,
    beta: Tensor,
    decay: Tensor,
    bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    keys: Tensor | None = None,
    values: Tensor | None = None,
    *,
    key_heads: int,
    order: str,
    max_beta: float = 1.0,
    eps: float = 1e-6,
    min_log_decay: float = 0.0,
) -> Tensor:
    heads, value_dim = len(decay), state.shape[2]
    key_dim, group = state.shape[1] // heads, heads // key_heads
    if keys is None or values is None:
        x, keys, values = x.split((key_heads * key_dim, key_heads * key_dim, heads * value_dim), dim=1)

    def directions(part: Tensor) -> Tensor:
        each = part.unflatten(1, (key_heads, key_dim))
        each = each / (each.square().sum(dim=-1, keepdim=True) + eps).sqrt()
        return each.repeat_interleave(group, dim=1) if order == "each" else each.repeat(1, group, 1)

    q, k, v = directions(x) * key_dim**-0.5, directions(keys), values.unflatten(1, (heads, value_dim))
    slowed, rate = (alpha + bias).unflatten(1, (heads, -1)), decay[:, None]
    kept = torch.exp(min_log_decay * (-rate * slowed).sigmoid() if min_log_decay else rate * softplus(slowed))
    share = beta.sigmoid() * max_beta
    out = torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, key_dim, value_dim)
        for row in range(start, stop):
            s *= kept[row, :, :, None]
            known = torch.einsum("hk,hkv->hv", k[row], s)
            s += k[row].unsqueeze(2) * (share[row, :, None] * (v[row] - known)).unsqueeze(1)
            out[row] = torch.einsum("hk,hkv->hv", q[row], s)
    return out.flatten(1)
