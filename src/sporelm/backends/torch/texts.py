"""Ops on whole texts in torch."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm.ops.apart import columns_of


def text_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Any,
    slopes: Tensor | None = None,
    biases: Tensor | None = None,
    *,
    head_dim: int,
    scale: float,
    reach: int | None = None,
) -> Tensor:
    """One text after the other; `starts` is a numpy array."""
    out = torch.zeros_like(q)
    queries, keys, values = (x.unflatten(1, (-1, head_dim)).transpose(0, 1) for x in (q, k, v))  # [heads, tokens, dim]
    group = queries.shape[0] // keys.shape[0]
    keys, values = (x.repeat_interleave(group, dim=0) for x in (keys, values))
    bounds = starts.tolist()
    for start, stop in pairwise(bounds):
        if start == stop:
            continue
        seen: Tensor | None = None
        place = torch.arange(stop - start, device=q.device)
        apart = (place - place[:, None]).abs()
        if slopes is not None:
            seen = slopes[:, None, None] * -apart.to(q.dtype)
        if biases is not None:
            added = biases[:, biases.shape[1] // 2 + place - place[:, None]]
            seen = added if seen is None else seen + added
        if reach is not None:
            near = apart <= reach
            seen = near if seen is None else seen.masked_fill(~near, -torch.inf)
        text = slice(start, stop)
        mixed = scaled_dot_product_attention(
            queries[:, text], keys[:, text], values[:, text], attn_mask=seen, scale=scale
        )
        out[start:stop] = mixed.transpose(0, 1).flatten(1)
    return out


def apart_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Any,
    of_rows: Tensor,
    of_keys: Tensor,
    *,
    head_dim: int,
    scale: float,
    buckets: int,
    farthest: int,
) -> Tensor:
    """One text after the other; `starts` is a numpy array."""
    out = torch.zeros_like(q)
    queries, keys, values = (x.unflatten(1, (-1, head_dim)).transpose(0, 1) for x in (q, k, v))  # [heads, tokens, dim]
    by_row, by_key = (x.unflatten(1, (-1, 2 * buckets)).transpose(0, 1) for x in (of_rows, of_keys))
    for start, stop in pairwise(starts.tolist()):
        if start == stop:
            continue
        place, text = np.arange(stop - start), slice(start, stop)
        columns = torch.from_numpy(columns_of(place[:, None] - place, buckets, farthest)).to(q.device)
        columns = columns.expand(len(queries), -1, -1)
        added = by_row[:, text].gather(2, columns) + by_key[:, text].gather(2, columns.mT).mT
        mixed = scaled_dot_product_attention(
            queries[:, text], keys[:, text], values[:, text], attn_mask=added * scale, scale=scale
        )
        out[text] = mixed.transpose(0, 1).flatten(1)
    return out


def mean_rows(x: Tensor, firsts: Any, stops: Any) -> Tensor:
    """One text after the other, so that none has a part in another's mean; the bounds are numpy arrays."""
    bounds = zip(firsts.tolist(), stops.tolist(), strict=True)
    return torch.stack([x[first:stop].double().mean(dim=0) for first, stop in bounds]).to(x.dtype)
