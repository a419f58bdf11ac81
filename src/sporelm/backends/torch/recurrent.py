"""Blocks that carry a state from row to row, through plain torch: rows one after the other, all heads at once.

`starts`, `lengths` and `states` are numpy arrays: a step has few sequences.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus


def each_sequence(state: Tensor, starts: Any, lengths: Any, states: Any) -> Iterator[tuple[Tensor, int, int]]:
    """Each sequence that has rows: its state, a view, zeroed where it begins, and where its rows begin and end."""
    first, held = starts.tolist(), lengths.tolist()
    for number, slot in enumerate(states.tolist()):
        start, stop = first[number], first[number + 1]
        if start < stop:
            if held[number] == stop - start:
                state[slot] = 0
            yield state[slot], start, stop


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
    most: float = 1.0,
    eps: float = 1e-6,
    least: float = 0.0,
) -> Tensor:
    heads, value_dim = len(decay), state.shape[2]
    key_dim, group = state.shape[1] // heads, heads // key_heads
    if keys is None or values is None:
        x, keys, values = x.split((key_heads * key_dim, key_heads * key_dim, heads * value_dim), dim=1)

    def directions(part: Tensor) -> Tensor:
        each = part.unflatten(1, (key_heads, key_dim))
        each = each / (each.double().square().sum(dim=-1, keepdim=True) + eps).sqrt().float()
        return each.repeat_interleave(group, dim=1) if order == "each" else each.repeat(1, group, 1)

    q, k, v = directions(x) * key_dim**-0.5, directions(keys), values.unflatten(1, (heads, value_dim))
    slowed, rate = (alpha + bias).unflatten(1, (heads, -1)), decay[:, None]
    kept = torch.exp(least * (-rate * slowed).sigmoid() if least else rate * softplus(slowed))
    share = beta.sigmoid() * most
    out = torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, key_dim, value_dim)
        for row in range(start, stop):
            s *= kept[row, :, :, None]
            known = torch.einsum("hk,hkv->hv", k[row], s)
            s += k[row].unsqueeze(2) * (share[row, :, None] * (v[row] - known)).unsqueeze(1)
            out[row] = torch.einsum("hk,hkv->hv", q[row], s)
    return out.flatten(1)


def lightning_attention(x: Tensor, kept: Tensor, state: Tensor, starts: Any, lengths: Any, states: Any) -> Tensor:
    heads, dim = len(kept), state.shape[2]
    q, k, v = x.unflatten(1, (heads, 3, dim)).unbind(2)
    out = torch.empty_like(v)
    for held, start, stop in each_sequence(state, starts, lengths, states):
        s = held.view(heads, dim, dim)
        for row in range(start, stop):
            s *= kept[:, None, None]
            s += k[row].unsqueeze(2) * v[row].unsqueeze(1)
            out[row] = torch.einsum("hk,hkv->hv", q[row], s)
    return out.flatten(1)


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


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group: int, first: str, activation: str = "silu"
) -> Tensor:
    opened = silu(gate) if activation == "silu" else gate.sigmoid()
    runs = (x * opened if first == "gate" else x).unflatten(1, (-1, group))
    mean_square = runs.double().square().mean(dim=-1, keepdim=True)
    scaled = (runs * (mean_square + eps).rsqrt().float() * weight).flatten(1)
    return scaled if first == "gate" else scaled * opened
