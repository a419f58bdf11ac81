"""dlinfer's ops for sparse latent attention (DeepSeek-V3.2): the indexer, and attention over the chosen positions.

Formulas and layouts follow torch_npu's documentation of npu_lightning_indexer and npu_sparse_flash_attention, in the
layouts that LMDeploy uses: rows packed (TND), caches paged ([blocks, block_size, 1, width]), right-aligned causal.
"""

from typing import Any

import torch
from torch import Tensor

from sporelm.adaptors.dlinfer.attention_ops import ends_of, sequences_of, to_list


def _read_pages(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Return the first positions of a sequence: [length, width]."""
    size = cache.shape[1]
    return cache.index_select(0, table[: -(-length // size)].long()).flatten(0, 1)[:length, 0]


def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Any,
    actual_seq_lengths_key: Any,
    block_table: Tensor,
    sparse_count: int,
) -> Tensor:
    """Return the positions with the highest scores for each row, best first, then -1: int32 [tokens, 1, sparse_count].

    A score is the sum over heads of weight * relu(query @ key): query [tokens, heads, head_dim], key a paged cache,
    weights [tokens, heads]. actual_seq_lengths_query holds the end of each sequence, actual_seq_lengths_key its
    positions.
    """
    found = torch.full((len(query), 1, sparse_count), -1, dtype=torch.int32, device=query.device)
    lengths = to_list(actual_seq_lengths_key)
    for index, start, stop in sequences_of(ends_of(actual_seq_lengths_query, len(query))):
        held = _read_pages(key, block_table[index], lengths[index]).float()
        scores = torch.einsum("thd,kd->thk", query[start:stop].float(), held).relu()
        totals = (scores * weights[start:stop].float().unsqueeze(-1)).sum(dim=1)
        place = torch.arange(lengths[index], device=query.device)
        own = place[lengths[index] - (stop - start) :].unsqueeze(1)
        totals = totals.masked_fill(place > own, -torch.inf)
        count = min(sparse_count, lengths[index])
        best = totals.sort(dim=1, descending=True, stable=True)
        chosen = best.indices[:, :count].masked_fill(best.values[:, :count] == -torch.inf, -1)
        found[start:stop, 0, :count] = chosen.int()
    return found


def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    softmax_scale: float,
    block_table: Tensor,
    actual_seq_lengths_query: Any,
    kv_seqlens: Any,
    query_rope: Tensor,
    key_rope: Tensor,
) -> Tensor:
    """Return softmax((query @ key + query_rope @ key_rope) * scale) value over each row's positions: [tokens, heads,
    width].

    query [tokens, heads, width], query_rope [tokens, heads, rotary]; key, value and key_rope are paged caches with one
    head; sparse_indices int32 [tokens, 1, count], -1 where there are fewer.
    """
    found = torch.zeros_like(query)
    lengths = to_list(kv_seqlens)
    for index, start, stop in sequences_of(ends_of(actual_seq_lengths_query, len(query))):
        held, ropes, values = (
            _read_pages(cache, block_table[index], lengths[index]).float() for cache in (key, key_rope, value)
        )
        scores = torch.einsum("thd,kd->thk", query[start:stop].float(), held)
        scores = (scores + torch.einsum("thd,kd->thk", query_rope[start:stop].float(), ropes)) * softmax_scale
        chosen = sparse_indices[start:stop, 0].long()
        seen = torch.zeros(stop - start, lengths[index] + 1, dtype=torch.bool, device=query.device)
        seen.scatter_(1, torch.where(chosen < 0, lengths[index], chosen), True)
        mixed = scores.masked_fill(~seen[:, None, :-1], -torch.inf).softmax(dim=-1) @ values
        found[start:stop] = mixed.to(query.dtype)
    return found
