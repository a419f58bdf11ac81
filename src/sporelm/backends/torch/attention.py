"""Rotary positions and attention in torch, over pages of keys and values."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm.backends.torch.cache import held_in, store_kv
from sporelm.ops.attention import PAGE
from sporelm.ops.cache import BlockPages


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


def attention(
    q: Tensor,
    cache: Tensor | BlockPages,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """One sequence after the other, over the pages that its rows see; `starts` and `lengths` are numpy arrays."""
    out = torch.zeros_like(q)
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True)
    for sequence, (start, stop, length) in enumerate(bounds):
        if start == stop:
            continue
        row = length - (stop - start)  # position of the first row
        lowest = 0 if window is None else max(0, row - window + 1)
        lowest = lowest if chunk is None else row // chunk * chunk
        page = lowest // PAGE
        held = held_in(cache, pages[sequence, page : -(-length // PAGE)])  # [pages, 2, kv_heads, PAGE, head_dim]
        first = lowest - page * PAGE
        held = held.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, first : length - page * PAGE].float()
        seen = falls = None
        if stop - start > 1 or slopes is not None:
            place = torch.arange(page * PAGE + first, length, device=q.device)
            rows = torch.arange(row, length, device=q.device).unsqueeze(1)
            seen = place <= rows if window is None else (place <= rows) & (place > rows - window)
            seen = seen if chunk is None else seen & (place >= rows // chunk * chunk)
            falls = None if slopes is None else slopes.view(-1, 1, 1) * (place - rows)
        queries = q[start:stop].unflatten(1, (-1, cache.shape[4])).transpose(0, 1)  # [heads, rows, head_dim]
        if sinks is None and softcap is None and falls is None:
            keys, values = held.unsqueeze(1)
            mixed = scaled_dot_product_attention(
                queries.unsqueeze(0), keys, values, attn_mask=seen, scale=scale, enable_gqa=True
            )[0]
        else:
            mixed = _mixed(queries, held, seen, sinks, falls, scale, softcap)
        out[start:stop] = mixed.transpose(0, 1).flatten(1)
    return out


def _mixed(
    queries: Tensor,
    held: Tensor,
    seen: Tensor | None,
    sinks: Tensor | None,
    falls: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention with sinks, bounded scores, or `falls` [heads, rows, positions] added to them: queries [heads, rows,
    head_dim], held [2, kv_heads, positions, ...]."""
    keys, values = held.unsqueeze(2)  # a place for the group
    grouped = queries.unflatten(0, (keys.shape[0], -1))
    scores = grouped @ keys.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if falls is not None:
        scores = scores + falls.view_as(scores)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.view(*grouped.shape[:2], 1, 1).expand(-1, -1, scores.shape[2], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[2]]
    return (weights @ values).flatten(0, 1)
