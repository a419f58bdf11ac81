"""Rotary position embedding through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.paged_attention import store_kv
from sporelm.ops.canonical_pages import BlockPages


@implements(ops.rope)
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
    if streams is None:
        angles = table.index_select(0, positions)
    else:
        where = positions[:, torch.tensor(streams * 2, device=positions.device)].long()
        angles = table.gather(0, where)
    cosines, sines = angles.unsqueeze(1).chunk(2, dim=-1)  # [tokens, 1, rotary / 2]
    heads = x.unflatten(1, (-1, head_dim))
    turned, rest = heads[..., :rotary], heads[..., rotary:]
    if style == "halves":  # the two halves as heads of their own
        turned = turned.unflatten(-1, (2, -1))
        cosines, sines = (part.unflatten(-1, (2, -1)) for part in (cosines, sines))
    left, right = (turned[..., ::2], turned[..., 1::2]) if style == "adjacent" else turned.chunk(2, dim=-1)
    pairs = (left * cosines - right * sines, right * cosines + left * sines)
    turned = torch.stack(pairs, dim=-1).flatten(-2) if style == "adjacent" else torch.cat(pairs, dim=-1)
    return torch.cat((turned.flatten(-2) if style == "halves" else turned, rest), dim=-1).flatten(1)


@implements(ops.rope_store)
def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    cache: Tensor | BlockPages,
    slots: Tensor,
    **how: Any,
) -> Tensor:
    store_kv(rope(k, positions, table, **how), v, cache, slots)
    return rope(q, positions, table, **how)
