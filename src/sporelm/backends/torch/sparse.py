"""Sparse attention in torch: an indexer's keys into pages, the slots that it chooses, and attention to them."""

from typing import Any

import torch
from torch import Tensor

from sporelm.backends.torch.cache import held_in, rounded_blocks
from sporelm.ops.attention import PAGE
from sporelm.ops.cache import BlockPages
from sporelm.ops.sparse import NONE


def store_rows(x: Tensor, cache: Tensor | BlockPages, slots: Tensor) -> tuple[()]:
    page, offset = (slots // PAGE).long(), (slots % PAGE).long()
    if isinstance(cache, BlockPages):
        cache.blocks[:, 0, 0][page, offset] = rounded_blocks(x)
    else:
        cache[:, 0, 0][page, offset] = x.to(cache.dtype)
    return ()


def choose_slots(
    q: Tensor, weights: Tensor, cache: Tensor | BlockPages, starts: Any, lengths: Any, pages: Tensor, *, k: int
) -> Tensor:
    """One sequence after the other; `starts` and `lengths` are numpy arrays."""
    width = cache.shape[4]
    out = torch.full((len(q), k), NONE, dtype=torch.int32, device=q.device)
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True)
    for sequence, (start, stop, length) in enumerate(bounds):
        if start == stop:
            continue
        table = pages[sequence, : -(-length // PAGE)]
        held = held_in(cache, table).reshape(-1, width)[:length].float()
        places = torch.arange(length, device=q.device)
        slots = table.long()[places // PAGE] * PAGE + places % PAGE
        scores = torch.relu(q[start:stop].unflatten(1, (-1, width)) @ held.T)
        scores = (weights[start:stop].unsqueeze(1) @ scores).squeeze(1).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        seen = places <= torch.arange(length - (stop - start), length, device=q.device).unsqueeze(1)
        # What is not seen comes last: sorted by score, then by whether it is seen, each time keeping the order.
        order = scores.argsort(dim=-1, descending=True, stable=True)
        order = order.gather(1, seen.gather(1, order).logical_not().int().argsort(dim=-1, stable=True))[:, :k]
        there = seen.gather(1, order)
        order = order.masked_fill(~there, length).sort(dim=-1).values
        found = torch.where(order < length, slots[order.clamp(max=length - 1)], NONE)
        out[start:stop, : found.shape[1]] = found.int()
    return out


def chosen_attention(
    latent: Tensor, q: Tensor, cache: Tensor | BlockPages, chosen: Tensor, *, heads: int, scale: float
) -> Tensor:
    """One row after the other, each with what it chose."""
    queries, width = latent.unflatten(1, (heads, -1)), cache.shape[4]
    rank = queries.shape[-1]
    whole = torch.cat((queries, q.unflatten(1, (heads, -1))[..., : width - rank]), dim=2) * scale
    out = torch.zeros_like(queries)
    for row, slots in enumerate(chosen.long()):
        seen = slots[slots != NONE]
        used, where = (seen // PAGE).unique(return_inverse=True)
        held = held_in(cache, used)[where, 0, 0, seen % PAGE].float()
        out[row] = (whole[row] @ held.T).softmax(dim=-1) @ held[:, :rank]
    return out.flatten(1)
