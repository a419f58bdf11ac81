"""Attention over whole texts through plain torch."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.encoder_attention)
def encoder_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Any,
    slopes: Tensor | None = None,
    biases: Tensor | None = None,
    *,
    head_dim: int,
    scale: float,
    half_window: int | None = None,
) -> Tensor:
    """Attend text by text. `starts` is a numpy array."""
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
        if half_window is not None:
            near = apart <= half_window
            seen = near if seen is None else seen.masked_fill(~near, -torch.inf)
        text = slice(start, stop)
        mixed = scaled_dot_product_attention(
            queries[:, text], keys[:, text], values[:, text], attn_mask=seen, scale=scale
        )
        out[start:stop] = mixed.transpose(0, 1).flatten(1)
    return out
