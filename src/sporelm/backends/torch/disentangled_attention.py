"""Disentangled attention through plain torch."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.ops.disentangled_attention import distance_columns


@implements(ops.disentangled_attention)
def disentangled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Any,
    row_scores: Tensor,
    key_scores: Tensor,
    *,
    head_dim: int,
    scale: float,
    buckets: int,
    max_distance: int,
) -> Tensor:
    """Attend text by text. `starts` is a numpy array."""
    out = torch.zeros_like(q)
    queries, keys, values = (x.unflatten(1, (-1, head_dim)).transpose(0, 1) for x in (q, k, v))  # [heads, tokens, dim]
    by_row, by_key = (x.unflatten(1, (-1, 2 * buckets)).transpose(0, 1) for x in (row_scores, key_scores))
    for start, stop in pairwise(starts.tolist()):
        if start == stop:
            continue
        place, text = np.arange(stop - start), slice(start, stop)
        columns = torch.from_numpy(distance_columns(place[:, None] - place, buckets, max_distance)).to(q.device)
        columns = columns.expand(len(queries), -1, -1)
        added = by_row[:, text].gather(2, columns) + by_key[:, text].gather(2, columns.mT).mT
        mixed = scaled_dot_product_attention(
            queries[:, text], keys[:, text], values[:, text], attn_mask=added * scale, scale=scale
        )
        out[text] = mixed.transpose(0, 1).flatten(1)
    return out
