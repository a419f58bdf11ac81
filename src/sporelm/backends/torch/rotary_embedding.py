"""Rotary position embedding through plain torch. Angles and products are float32."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.paged_attention import store_kv
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_pages import Cache


@implements(ops.rope, is_narrow=True)
def rope(
    x: Tensor,
    positions: Tensor,
    table: Tensor,
    *,
    head_dim: int,
    style: str,
    streams: tuple[int, ...] | None = None,
) -> Tensor:
    rotary = table.shape[1]
    factors = STEP.share(
        "rope", (positions, table), (style, streams), lambda: _find_factors(positions, table, style, streams)
    )
    heads = x.float().view(x.shape[0], -1, head_dim)
    if rotary == head_dim:
        return _turn(heads, *factors, style).view(x.shape).to(x.dtype)
    turned = _turn(heads[..., :rotary], *factors, style)
    return torch.cat((turned, heads[..., rotary:]), dim=-1).flatten(1).to(x.dtype)


def _find_factors(
    positions: Tensor, table: Tensor, style: str, streams: tuple[int, ...] | None
) -> tuple[Tensor, Tensor]:
    """Return the factors of each number, and of the other number of its pair: [tokens, 1, rotary] each."""
    if streams is None:
        angles = table.index_select(0, positions)
    else:
        columns = torch.cat([positions[:, stream : stream + 1] for stream in streams * 2], dim=1)
        angles = table.gather(0, columns.long())
    cosines, sines = angles.unsqueeze(1).chunk(2, dim=-1)  # [tokens, 1, rotary / 2]
    return _join(cosines, cosines, style), _join(-sines, sines, style)


def _join(left: Tensor, right: Tensor, style: str) -> Tensor:
    """Return the two numbers of each pair at their places: the inverse of `_split`."""
    if style == "adjacent":
        return torch.stack((left, right), dim=-1).flatten(-2)
    if style == "halves":  # the two halves as heads of their own
        pairs = (part.unflatten(-1, (2, -1)) for part in (left, right))
        return torch.cat(tuple(pairs), dim=-1).flatten(-2)
    return torch.cat((left, right), dim=-1)


def _turn(x: Tensor, own: Tensor, other: Tensor, style: str) -> Tensor:
    """Return x * own + (the other number of each pair) * other."""
    if style == "adjacent":
        left, right = x[..., ::2], x[..., 1::2]
    elif style == "halves":
        left, right = (part.flatten(-2) for part in x.unflatten(-1, (2, -1)).chunk(2, dim=-1))
    else:
        left, right = x.chunk(2, dim=-1)
    return (x * own).add_(_join(right, left, style).mul_(other))  # no fused product: its rounding differs


@implements(ops.rope_store, is_narrow=True)
def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    cache: Cache,
    slots: Tensor,
    **how: Any,
) -> Tensor:
    turned = rope(torch.cat((q, k), dim=1), positions, table, **how)
    q, k = turned.split_with_sizes((q.shape[1], k.shape[1]), dim=1)
    store_kv(k, v, cache, slots)
    return q
