"""Multi-head latent attention through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.norm import rms_norm
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.paged_batch import batches
from sporelm.backends.torch.rotary_embedding import rope
from sporelm.backends.torch.torch_pages import Cache, write_rows
from sporelm.ops.paged_attention import PAGE


@implements(ops.store_latent, is_narrow=True)
def store_latent(
    x: Tensor,
    weight: Tensor,
    positions: Tensor | None,
    table: Tensor | None,
    cache: Cache,
    slots: Tensor,
    *,
    eps: float,
    style: str,
) -> tuple[()]:
    rank = len(weight)
    turned = x[:, rank:]
    if positions is not None and table is not None:
        turned = rope(turned, positions, table, head_dim=x.shape[1] - rank, style=style)
    write_rows(cache, slots, torch.cat((rms_norm(x[:, :rank], weight, eps=eps), turned), dim=1).unsqueeze(1))
    return ()


@implements(ops.latent_attention, is_narrow=True)
def latent_attention(
    latent: Tensor,
    q: Tensor,
    cache: Cache,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    *,
    heads: int,
    scale: float,
) -> Tensor:
    """Attend batch by batch, all heads of a row to the same rows of the cache. Scores and their softmax are float32.

    `starts` and `lengths` are numpy arrays, or on the device in a padded step.
    """
    queries, (num_pages, *_, width) = latent.unflatten(1, (heads, -1)), cache.shape
    rank = queries.shape[-1]
    whole = torch.cat((queries, q.unflatten(1, (heads, -1))[..., : width - rank]), dim=2)
    out = torch.zeros_like(queries)
    for batch in batches(starts, lengths, pages, len(q), num_pages, None, None):
        for part in batch.split(PAGE * width):
            held = part.gather(cache, whole.dtype)[0, :, 0]  # [sequences, positions, width]
            rows = part.take(whole).transpose(1, 2).flatten(1, 2)  # [sequences, heads * rows each, width]
            scores = (rows @ held.transpose(1, 2)).float().mul_(scale)
            mask = part.mask(None, None, heads, scores.dtype)
            if mask is not None:
                scores = scores + mask.squeeze(1)
            mixed = scores.softmax(dim=-1).to(held.dtype) @ held[..., :rank]
            part.put(out, mixed.unflatten(1, (heads, -1)).transpose(1, 2))
    return out.flatten(1)
