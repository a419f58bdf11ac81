"""Multi-head latent attention through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.norm import rms_norm
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.rotary_embedding import rope
from sporelm.backends.torch.torch_pages import narrow, read_pages, round_to_blocks
from sporelm.ops.canonical_pages import BlockPages
from sporelm.ops.paged_attention import PAGE


@implements(ops.store_latent)
def store_latent(
    x: Tensor,
    weight: Tensor,
    positions: Tensor | None,
    table: Tensor | None,
    cache: Tensor | BlockPages,
    slots: Tensor,
    *,
    eps: float,
    style: str,
) -> tuple[()]:
    rank, page, offset = len(weight), (slots // PAGE).long(), (slots % PAGE).long()
    turned = x[:, rank:]
    if positions is not None and table is not None:
        turned = rope(turned, positions, table, head_dim=x.shape[1] - rank, style=style)
    row = torch.cat((rms_norm(x[:, :rank], weight, eps=eps), turned), dim=1)
    if isinstance(cache, BlockPages):
        cache.blocks[:, 0, 0][page, offset] = round_to_blocks(row)
    else:
        cache[:, 0, 0][page, offset] = narrow(row, cache.dtype)
    return ()


@implements(ops.latent_attention)
def latent_attention(
    latent: Tensor,
    q: Tensor,
    cache: Tensor | BlockPages,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    *,
    heads: int,
    scale: float,
) -> Tensor:
    """Attend sequence by sequence. `starts` and `lengths` are numpy arrays."""
    queries, width = latent.unflatten(1, (heads, -1)), cache.shape[4]
    rank = queries.shape[-1]
    whole = torch.cat((queries, q.unflatten(1, (heads, -1))[..., : width - rank]), dim=2) * scale
    out = torch.zeros_like(queries)
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True)
    for sequence, (start, stop, length) in enumerate(bounds):
        if start == stop:
            continue
        held = read_pages(cache, pages[sequence, : -(-length // PAGE)]).reshape(-1, width)[:length].float()
        places = torch.arange(length, device=q.device)
        seen = places <= torch.arange(length - (stop - start), length, device=q.device).unsqueeze(1)
        scores = (whole[start:stop] @ held.T).masked_fill(~seen.unsqueeze(1), -torch.inf)
        out[start:stop] = scores.softmax(dim=-1) @ held[:, :rank]
    return out.flatten(1)
