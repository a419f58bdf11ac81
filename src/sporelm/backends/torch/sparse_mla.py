"""Sparse multi-head latent attention through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.torch_pages import read_pages
from sporelm.ops.canonical_pages import BlockPages
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.topk_indexer import NO_SLOT


@implements(ops.sparse_mla)
def sparse_mla(
    latent: Tensor, q: Tensor, cache: Tensor | BlockPages, chosen: Tensor, *, heads: int, scale: float
) -> Tensor:
    """Attend row by row, each to its selected slots."""
    queries, width = latent.unflatten(1, (heads, -1)), cache.shape[4]
    rank = queries.shape[-1]
    whole = torch.cat((queries, q.unflatten(1, (heads, -1))[..., : width - rank]), dim=2) * scale
    out = torch.zeros_like(queries)
    for row, slots in enumerate(chosen.long()):
        seen = slots[slots != NO_SLOT]
        used, where = (seen // PAGE).unique(return_inverse=True)
        held = read_pages(cache, used)[where, 0, 0, seen % PAGE].float()
        out[row] = (whole[row] @ held.T).softmax(dim=-1) @ held[:, :rank]
    return out.flatten(1)
