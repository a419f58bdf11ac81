"""Sparse multi-head latent attention through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.paged_batch import MAX_GATHERED
from sporelm.backends.torch.torch_pages import Cache, read_rows
from sporelm.ops.topk_indexer import NO_SLOT


@implements(ops.sparse_mla, is_narrow=True)
def sparse_mla(latent: Tensor, q: Tensor, cache: Cache, chosen: Tensor, *, heads: int, scale: float) -> Tensor:
    """Attend each row to its selected slots, as many rows at a time as can be gathered."""
    queries, width = latent.unflatten(1, (heads, -1)), cache.shape[4]
    rank = queries.shape[-1]
    whole = torch.cat((queries, q.unflatten(1, (heads, -1))[..., : width - rank]), dim=2)
    count = max(1, MAX_GATHERED // (chosen.shape[1] * width))
    found = [_attend(*parts, cache, rank, scale) for parts in zip(whole.split(count), chosen.split(count), strict=True)]
    return torch.cat(found).flatten(1).to(latent.dtype)


def _attend(rows: Tensor, slots: Tensor, cache: Cache, rank: int, scale: float) -> Tensor:
    is_absent = slots == NO_SLOT
    held = read_rows(cache, slots.masked_fill(is_absent, 0).long(), rows.dtype)  # [rows, slots, width]
    held = held.masked_fill_(is_absent.unsqueeze(2), 0)
    scores = (rows @ held.transpose(1, 2)).float().mul_(scale).masked_fill_(is_absent.unsqueeze(1), -torch.inf)
    return scores.softmax(dim=-1).to(held.dtype) @ held[..., :rank]
