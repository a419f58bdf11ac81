"""RWKV's ops through plain torch: rows of a state one after the other, all heads at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sporelm.backends.torch.recurrent import each_sequence
from sporelm.backends.torch.rows import layer_norm
from sporelm.ops.rwkv import FASTEST, LEAST_LENGTH


def mix_rows(x: Tensor, delta: Tensor, mixes: Sequence[Tensor], more: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    each = [mix + given for mix, given in zip(mixes, more, strict=True)] if more else mixes
    return tuple(torch.addcmul(x, mix, delta) for mix in each)


def blend(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return x + (y - x) * gate.sigmoid()


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, group: int, eps: float) -> Tensor:
    return (layer_norm(x.reshape(-1, group), eps=eps).view(-1, len(weight)) * weight + bias).view_as(x)


def wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    removed: Tensor,
    kept: Tensor,
    bonus: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> tuple[Tensor, Tensor]:
    heads, dim = bonus.shape
    r, w, k, v, a = (each.unflatten(1, (heads, -1)) for each in (r, w, k, v, a))
    rate, decay = a.sigmoid(), torch.exp(-FASTEST * w.sigmoid())
    unit = k * removed.view(heads, dim)
    length = unit.double().square().sum(dim=-1, keepdim=True).sqrt().clamp(min=LEAST_LENGTH)
    unit = (unit / length).float()
    key, out = k * (1 + (rate - 1) * kept.view(heads, dim)), torch.empty_like(v)
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
