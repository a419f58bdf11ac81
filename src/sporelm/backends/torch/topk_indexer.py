"""The top-k indexer through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.torch_pages import Cache, read_pages, write_rows
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.topk_indexer import NO_SLOT


@implements(ops.store_rows, is_narrow=True)
def store_rows(x: Tensor, cache: Cache, slots: Tensor) -> tuple[()]:
    write_rows(cache, slots, x.unsqueeze(1))
    return ()


@implements(ops.topk_indexer, is_narrow=True)
def topk_indexer(
    q: Tensor, weights: Tensor, cache: Cache, starts: Any, lengths: Any, pages: Tensor, *, k: int
) -> Tensor:
    """Score sequence by sequence. `starts` and `lengths` are numpy arrays."""
    q, weights, width = q.float(), weights.float(), cache.shape[4]
    out = torch.full((len(q), k), NO_SLOT, dtype=torch.int32, device=q.device)
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True)
    for sequence, (start, stop, length) in enumerate(bounds):
        if start == stop:
            continue
        table = pages[sequence, : -(-length // PAGE)]
        held = read_pages(cache, table).reshape(-1, width)[:length]
        places = torch.arange(length, device=q.device)
        slots = table.long()[places // PAGE] * PAGE + places % PAGE
        scores = torch.relu(q[start:stop].unflatten(1, (-1, width)) @ held.T)
        scores = (weights[start:stop].unsqueeze(1) @ scores).squeeze(1).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        seen = places <= torch.arange(length - (stop - start), length, device=q.device).unsqueeze(1)
        # Positions that are not visible come last: sorted by score, then by visibility, each time keeping the order.
        order = scores.argsort(dim=-1, descending=True, stable=True)
        order = order.gather(1, seen.gather(1, order).logical_not().int().argsort(dim=-1, stable=True))[:, :k]
        there = seen.gather(1, order)
        order = order.masked_fill(~there, length).sort(dim=-1).values
        found = torch.where(order < length, slots[order.clamp(max=length - 1)], NO_SLOT)
        out[start:stop, : found.shape[1]] = found.int()
    return out
