"""KV caches in torch: pages of floats or of Q8_0 blocks, written and read.

Pages hold PAGE positions. Their shapes are those of `sporelm.ops.canonical_pages`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.torch_pages import narrow, read_pages, round_to_blocks
from sporelm.ops.canonical_pages import BlockPages
from sporelm.ops.paged_attention import PAGE


@implements(ops.store_kv)
def store_kv(k: Tensor, v: Tensor, cache: Tensor | BlockPages, slots: Tensor) -> tuple[()]:
    page, offset = (slots // PAGE).long(), (slots % PAGE).long()
    for half, rows in enumerate((k, v)):
        heads = rows.unflatten(1, cache.shape[2::2])
        if isinstance(cache, BlockPages):
            cache.blocks[:, half][page, :, offset] = round_to_blocks(heads)
        else:
            cache[:, half][page, :, offset] = narrow(heads, cache.dtype)
    return ()


@implements(ops.attention)
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
    """Attend sequence by sequence, over the pages that its rows see. `starts` and `lengths` are numpy arrays."""
    out = torch.zeros_like(q)
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True)
    for sequence, (start, stop, length) in enumerate(bounds):
        if start == stop:
            continue
        row = length - (stop - start)  # position of the first row
        lowest = 0 if window is None else max(0, row - window + 1)
        lowest = lowest if chunk is None else row // chunk * chunk
        page = lowest // PAGE
        held = read_pages(cache, pages[sequence, page : -(-length // PAGE)])  # [pages, 2, kv_heads, PAGE, head_dim]
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
            mixed = _attend(queries, held, seen, sinks, falls, scale, softcap)
        out[start:stop] = mixed.transpose(0, 1).flatten(1)
    return out


def _attend(
    queries: Tensor,
    held: Tensor,
    seen: Tensor | None,
    sinks: Tensor | None,
    falls: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attend with sinks, soft caps, or `falls` [heads, rows, positions] added to the scores.

    queries [heads, rows, head_dim], held [2, kv_heads, positions, ...]
    """
    keys, values = held.unsqueeze(2)  # a dimension for the group
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
