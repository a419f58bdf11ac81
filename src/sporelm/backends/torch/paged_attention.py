"""Attention over a paged KV cache in torch: batches of sequences (`paged_batch.py`) over their gathered pages."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.paged_batch import PagedBatch, batches
from sporelm.backends.torch.torch_pages import Cache, write_rows
from sporelm.ops.paged_attention import PAGE


@implements(ops.store_kv, is_narrow=True)
def store_kv(k: Tensor, v: Tensor, cache: Cache, slots: Tensor) -> tuple[()]:
    write_rows(cache, slots, torch.cat((k, v), dim=1).view(k.shape[0], -1, cache.shape[4]))
    return ()


@implements(ops.attention, is_narrow=True)
def attention(
    q: Tensor,
    cache: Cache,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    spans: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Attend batch by batch. `starts` and `lengths` are numpy arrays, or on the device in a padded step."""
    num_pages, _, kv_heads, _, head_dim = cache.shape
    heads = q.view(q.shape[0], kv_heads, -1, head_dim)  # [tokens, kv_heads, group, head_dim]
    group = heads.shape[2]
    parts = [
        part
        for batch in batches(starts, lengths, pages, q.shape[0], num_pages, window, chunk, spans)
        for part in batch.split(2 * kv_heads * PAGE * head_dim)
    ]
    out = heads if len(parts) == 1 and parts[0].num_tokens == q.shape[0] else torch.zeros_like(heads)
    for part in parts:
        queries = part.take(heads)
        if part.num_rows == 1:
            queries = queries.squeeze(1)
        else:  # rows of a group beside one another: [sequences, kv_heads, group * rows each, head_dim]
            queries = queries.permute(0, 2, 3, 1, 4).flatten(2, 3)
        keys, values = part.gather(cache, q.dtype)
        if sinks is None and softcap is None and slopes is None:
            mixed = _attend(part, queries, keys, values, group, scale, window, chunk)
        else:
            mixed = _attend_modified(part, queries, keys, values, sinks, slopes, scale, window, softcap, chunk)
        if part.num_rows == 1:
            found = mixed.unsqueeze(1)
        else:
            found = mixed.unflatten(2, (group, -1)).permute(0, 3, 1, 2, 4)
        if out is heads:  # this part has all rows
            return found.reshape(q.shape)
        part.put(out, found)
    return out.flatten(1)


def _attend(
    part: PagedBatch,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: int,
    scale: float,
    window: int | None,
    chunk: int | None,
) -> Tensor:
    if part.length is not None and part.num_rows > 1:
        # One sequence: kv_heads as the batch, its group as the heads, so that neither keys nor the mask are repeated.
        each = queries[0].unflatten(1, (group, -1))
        keys, values = (x[0].unsqueeze(1).expand(-1, group, -1, -1) for x in (keys, values))
        is_causal = part.is_causal(window, chunk)
        mask = None if is_causal else part.mask(window, chunk, 1, queries.dtype)
        mixed = scaled_dot_product_attention(each, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale)
        return mixed.flatten(1, 2).unsqueeze(0)
    mask = part.mask(window, chunk, group, queries.dtype)
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)


def _attend_modified(
    part: PagedBatch,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sinks: Tensor | None,
    slopes: Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
) -> Tensor:
    """Attend with sinks, soft caps, or slopes: the scores and their softmax are float32."""
    kv_heads = keys.shape[1]
    group = queries.shape[2] // part.num_rows
    scores = (queries.float() @ keys.float().transpose(-1, -2)).mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if slopes is not None:
        distances = (part.places.unsqueeze(1) - part.positions.unsqueeze(2)).float()  # [sequences, rows, positions]
        falls = slopes.view(1, kv_heads, group, 1, 1) * distances[:, None, None]
        scores = scores + falls.flatten(2, 3)
    mask = part.mask(window, chunk, group, scores.dtype)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.view(1, kv_heads, group, 1, 1).expand(len(scores), -1, -1, part.num_rows, 1).flatten(2, 3)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[2]]
    return (weights @ values.float()).to(queries.dtype)
