"""The back-end for Huawei Ascend NPUs: torch_npu's fused operators, and plain torch for the rest.

Signatures, layouts and limits are those of torch_npu's operator documentation (`torch_npu/_op_plugin_docs.py`), of its
schemas and of its meta functions, version 2.13. It has not run on an NPU.

Attention. A cache of pages [pages, 2, kv_heads, 64, head_dim] is a run of blocks: each block of keys is followed by the
block of its values. Seen from block 0 and from block 1 it is the two arrays that the operator wants, with one
table of block numbers 2 * page and no copy. Rows of sequences with one row read pages of 64 positions in place
(incremental attention); for longer chunks the operator wants blocks of 128 positions, so their pages are gathered.
Lengths are lists of the host: uploads keep their numbers beside the tensor (`host_values`).

Windows. For one row the operator ignores bands, so a mask says which positions of the pages it sees. Chunks gather the
pages that some row sees, and attend in a band.

Latent attention. The operator takes latents and rotated keys apart, in blocks of 128 positions. A page has both in each
row, so pages are gathered. It has limits for latents of 512 numbers and keys of 64, as DeepSeek's.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sporelm import ops
from sporelm.backends.device_context import enters_context
from sporelm.backends.protocol import Handle, Program, WeightArray
from sporelm.backends.torch.captured_graphs import GraphDevice, GraphProgram, Outputs
from sporelm.backends.torch.cross_attention import _equal_runs
from sporelm.backends.torch.int8_blocks import Int8Blocks
from sporelm.backends.torch.linear_experts import local_experts
from sporelm.backends.torch.paged_batch import MAX_GATHERED
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.quantized_linear import activation_values
from sporelm.backends.torch.row_groups import sort_into_groups
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_pages import Cache, _to_bits
from sporelm.backends.torch.torch_weight import TorchWeight, multiply_joined
from sporelm.backends.vendor.vendor_backend import (
    FusedKernelTable,
    Operator,
    TorchGraphCapture,
    VendorBackend,
    fall_back,
    host_list,
    narrow_weight,
    route_by_softmax,
)
from sporelm.ops import Graph
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.tensor import Tensor as ArrayTensor

TABLE = FusedKernelTable()
NARROW = (torch.float16, torch.bfloat16)

MAX_HEADS, MAX_HEAD_DIM, MAX_GROUP, HEAD_STEP = 256, 512, 64, 16  # of npu_fused_infer_attention_score
MAX_NUMBERS = (1 << 31) - 1  # of an array of pages
MASK_SIDE = 2048  # of the mask of sparse modes 3 and 4
CAUSAL, BAND = 3, 4  # sparse modes: a row sees all up to the diagonal that ends bottom right, or a band beside it
LATENT_RANK, LATENT_ROTARY, LATENT_BLOCK = 512, 64, 128  # of npu_fused_infer_attention_score_v2 with rotated keys
LATENT_HEADS, MAX_LATENT_ROWS = (1, 2, 4, 8, 16, 32, 64, 128), 16
BAND_HEADS, MAX_BAND_KEYS = 128, 131088  # of its first version, for chunks with more rows
MAX_ROTARY_HEADS, MAX_ROTARY = 1000, 896  # of npu_rotary_mul
MAX_EXPERTS = 1024  # groups of npu_grouped_matmul
MIN_GROUP = 32  # numbers that share a scale, of npu_weight_quant_batchmatmul

RMS_NORM = Operator("npu::npu_rms_norm", ("self", "gamma", "epsilon"))
ADD_RMS_NORM = Operator("npu::npu_add_rms_norm", ("x1", "x2", "gamma", "epsilon"))
ROTARY_MUL = Operator("npu::npu_rotary_mul", ("self", "r1", "r2", "rotary_mode"))
SWIGLU = Operator("npu::npu_swiglu", ("self", "dim"))
SCATTER = Operator("npu::npu_scatter_nd_update_", ("self", "indices", "updates"))
ATTENTION = Operator(
    "npu::npu_fused_infer_attention_score",
    (
        *("query", "key", "value", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv", "block_table"),
        *("num_heads", "scale", "input_layout", "num_key_value_heads", "sparse_mode", "block_size"),
        *("pre_tokens", "next_tokens"),
    ),
)
LATENT_ATTENTION = Operator(
    "npu::npu_fused_infer_attention_score_v2",
    (
        *("query", "key", "value", "query_rope", "key_rope", "atten_mask", "actual_seq_qlen", "actual_seq_kvlen"),
        *("block_table", "num_query_heads", "num_key_value_heads", "softmax_scale", "input_layout", "sparse_mode"),
        "block_size",
    ),
)
LATENT_BAND = Operator(ATTENTION.name, (*ATTENTION.arguments, "query_rope", "key_rope"))
GATING = Operator("npu::npu_moe_gating_top_k_softmax", ("x", "finished", "k"))
GROUPED_MATMUL = Operator(
    "npu::npu_grouped_matmul", ("x", "weight", "group_list", "split_item", "group_type", "group_list_type")
)
QUANTIZED_MATMUL = Operator(
    "npu::npu_weight_quant_batchmatmul", ("x", "weight", "antiquant_scale", "antiquant_group_size")
)


# ---- norms


@TABLE.fused(ops.rms_norm, RMS_NORM)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalize rows, or the heads of each. The weight is rounded to x's type."""
    if weight.dim() != 1:
        return fall_back(ops.rms_norm, "per-head norm weights", x, weight, eps=eps)
    rows = x if weight.shape[0] == x.shape[1] else x.unflatten(1, (-1, weight.shape[0]))
    return torch.ops.npu.npu_rms_norm(rows, narrow_weight(weight, x.dtype), eps)[0].view(x.shape)


@TABLE.fused(ops.add_rms_norm, ADD_RMS_NORM)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Normalize the sum of two rows; the operator returns both."""
    if weight.dim() != 1 or weight.shape[0] != x.shape[1]:
        return fall_back(ops.add_rms_norm, "per-head norm weights", x, residual, weight, eps=eps)
    normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, narrow_weight(weight, x.dtype), eps)
    return normed, total


# ---- rotary embedding


@TABLE.fused(ops.rope, ROTARY_MUL)
def rope(
    x: Tensor,
    positions: Tensor,
    table: Tensor,
    *,
    head_dim: int,
    style: str,
    streams: tuple[int, ...] | None = None,
) -> Tensor:
    """Rotate heads in layout BSND with one batch; cosines and sines are rounded to x's type."""
    rotary, heads = table.shape[1], x.shape[1] // head_dim
    if style == "halves":
        return fall_back(ops.rope, "style halves", x, positions, table, head_dim=head_dim, style=style, streams=streams)
    if heads >= MAX_ROTARY_HEADS or rotary >= MAX_ROTARY:
        reason = f"{heads} heads, rotary width {rotary}"
        return fall_back(ops.rope, reason, x, positions, table, head_dim=head_dim, style=style, streams=streams)
    cosines, sines = STEP.share(
        "npu rope", (positions, table), (style, streams, x.dtype), lambda: _angles(x, positions, table, style, streams)
    )
    rows = x.view(1, x.shape[0], heads, head_dim)
    mode = "half" if style == "half" else "interleave"
    rotated = torch.ops.npu.npu_rotary_mul(rows[..., :rotary].contiguous(), cosines, sines, mode)
    return (rotated if rotary == head_dim else torch.cat((rotated, rows[..., rotary:]), dim=-1)).view(x.shape)


def _angles(
    x: Tensor, positions: Tensor, table: Tensor, style: str, streams: tuple[int, ...] | None
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of every number of a head: [1, tokens, 1, rotary] in x's type."""
    if streams is None:
        angles = table.index_select(0, positions)
    else:
        columns = torch.cat([positions[:, stream : stream + 1] for stream in streams * 2], dim=1)
        angles = table.gather(0, columns.long())
    halves = angles.to(x.dtype).chunk(2, dim=1)
    if style == "half":
        wide = [torch.cat((each, each), dim=1) for each in halves]
    else:
        wide = [each.repeat_interleave(2, dim=1) for each in halves]
    return wide[0][None, :, None], wide[1][None, :, None]


@TABLE.fused(ops.rope_store, ROTARY_MUL, SCATTER)
def rope_store(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, cache: Cache, slots: Tensor, **how: Any
) -> Tensor:
    """Rotate queries and keys in one call, and store the keys with the values."""
    rotated = rope(torch.cat((q, k), dim=1), positions, table, **how)
    queries, keys = rotated.split_with_sizes((q.shape[1], k.shape[1]), dim=1)
    store_kv(keys, v, cache, slots)
    return queries.contiguous()


# ---- gated activation


@TABLE.fused(ops.linear_silu_mul, SWIGLU)
def linear_silu_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight) -> Tensor:
    """Multiply by both matrices as one, and gate the halves of the product."""
    return torch.ops.npu.npu_swiglu(multiply_joined(activation_values(x, gate), (gate, up)), -1)


# ---- keys and values


@TABLE.fused(ops.store_kv, SCATTER)
def store_kv(k: Tensor, v: Tensor, cache: Cache, slots: Tensor) -> tuple[()]:
    """Write rows of heads to their places. Caches of FP8 and of Q8_0 blocks are written by plain torch."""
    if not isinstance(cache, Tensor) or cache.dtype not in NARROW:
        fall_back(ops.store_kv, "unsupported KV cache type", k, v, cache, slots)
        return ()
    head_dim = cache.shape[4]
    heads = torch.cat((k, v), dim=1).view(k.shape[0], -1, head_dim)
    count = heads.shape[1]

    def number_rows() -> Tensor:
        slot, head = slots.long().unsqueeze(1), torch.arange(count, device=slots.device)
        return ((slot // PAGE * count + head) * PAGE + slot % PAGE).view(-1, 1)

    rows = STEP.share("npu rows", (slots,), (count,), number_rows)
    torch.ops.npu.npu_scatter_nd_update_(cache.view(-1, head_dim), rows, _to_bits(cache, heads).flatten(0, 1))
    return ()


# ---- attention


class _Group(NamedTuple):
    """Sequences with the same number of rows.

    rows     a slice, or int64 [sequences] if they have one row each
    real     rows of each that count
    lengths  positions of each
    ends     the same, as the step has them: an array of the host or of the device
    """

    rows: Any
    num_rows: int
    real: list[int]
    lengths: list[int]
    ends: Any
    table: Tensor  # int32 [sequences, columns] pages


@TABLE.fused(ops.attention, ATTENTION)
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
    """Attend group by group of sequences with equally many rows. Sinks are fused in layouts without pages only."""
    marks = {"sinks": sinks, "slopes": slopes, "images": spans, "softcap": softcap, "chunk": chunk}
    reason = next((name for name, value in marks.items() if value is not None), "") or find_attention_limit(q, cache)
    if reason:
        how = {"scale": scale, "window": window, "softcap": softcap, "chunk": chunk}
        return fall_back(ops.attention, reason, q, cache, starts, lengths, pages, sinks, slopes, spans, **how)
    assert isinstance(cache, Tensor)
    given, q = q.dtype, q.to(cache.dtype)  # the operator takes one type for queries, keys and values
    return _attend(
        _share_groups(starts, lengths, pages, q.shape[0]),
        q,
        lambda group: (_attend_to_pages if group.num_rows == 1 else _attend_to_gathered)(
            group, q[group.rows], cache, scale, window
        ),
    ).to(given)


def _share_groups(starts: Any, lengths: Any, pages: Tensor, num_tokens: int) -> list[_Group]:
    """Return the groups of a step, the same for all layers."""
    return STEP.share(
        "npu groups", (starts, lengths, pages), (num_tokens,), lambda: [*_groups(starts, lengths, pages, num_tokens)]
    )


def _attend(groups: list[_Group], q: Tensor, attend: Callable[[_Group], Tensor]) -> Tensor:
    """Return each group's results at its rows, in an array like q: zeros where no group has rows."""
    if len(groups) == 1 and isinstance(groups[0].rows, slice) and groups[0].rows == slice(0, len(q)):
        return attend(groups[0])
    out = torch.zeros_like(q)
    for group in groups:
        if isinstance(group.rows, slice):
            out[group.rows] = attend(group)
        else:
            out.index_copy_(0, group.rows, attend(group))
    return out


def find_attention_limit(q: Tensor, cache: Cache) -> str:
    """Return the limit of the operator that a call exceeds, or ""."""
    if not isinstance(cache, Tensor) or cache.dtype not in NARROW:
        return "KV cache is not f16 or bf16"
    num_pages, halves, kv_heads, _, head_dim = cache.shape
    heads = q.shape[1] // head_dim
    if head_dim % HEAD_STEP or head_dim > MAX_HEAD_DIM:
        return f"head size {head_dim}"
    if heads > MAX_HEADS or heads // kv_heads > MAX_GROUP:
        return f"{heads} query heads with {kv_heads} KV heads"
    if num_pages * halves * kv_heads * PAGE * head_dim > MAX_NUMBERS:
        return "KV cache has 2^31 elements or more"
    return ""


def _groups(starts: Any, lengths: Any, pages: Tensor, num_tokens: int) -> Iterator[_Group]:
    """Yield the groups of a step: its rows follow from `starts`, or in a padded step from the shapes (ADR 0045)."""
    firsts, held = host_list(starts), host_list(lengths)
    counts = np.diff(np.array(firsts, np.int64))
    table = pages if pages.dtype is torch.int32 else pages.int()
    if not isinstance(starts, np.ndarray):
        block, total = STEP.row_block, len(held)
        blocks = (num_tokens - total) // (block - 1) if block > 1 else 0
        decodes = total - blocks
        if decodes:
            yield _Group(slice(0, decodes), 1, [1] * decodes, held[:decodes], lengths[:decodes], table[:decodes])
        if blocks:
            real = [max(1, int(count)) for count in counts[decodes:total]]
            own = slice(decodes, decodes + blocks * block)
            yield _Group(own, block, real, held[decodes:], lengths[decodes:], table[decodes:])
        return
    singles = np.flatnonzero(counts == 1)
    if len(singles):
        rows = np.array(firsts, np.int64)[singles]
        is_run = bool((np.diff(rows) == 1).all())
        where = slice(int(rows[0]), int(rows[-1]) + 1) if is_run else torch.from_numpy(rows).to(pages.device)
        chosen = table if len(singles) == len(counts) else table[torch.from_numpy(singles).to(pages.device)]
        ends = [held[index] for index in singles]
        yield _Group(where, 1, [1] * len(singles), ends, np.array(ends, np.int32), chosen)
    for index in np.flatnonzero(counts > 1):
        columns = -(-held[index] // PAGE)
        own, count = slice(firsts[index], firsts[index + 1]), int(counts[index])
        ends = [held[index]]
        yield _Group(own, count, [count], ends, np.array(ends, np.int32), table[index : index + 1, :columns])


def _attend_to_pages(group: _Group, q: Tensor, cache: Tensor, scale: float, window: int | None) -> Tensor:
    """Attend from one row of each sequence to its pages, in place."""
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    blocks = cache.view(-1, kv_heads, PAGE, head_dim)
    table, mask = STEP.share("npu table", (group.table,), (window,), lambda: _find_blocks(group, window))
    queries = q.reshape(len(group.lengths), -1, 1, head_dim)
    mixed, _ = torch.ops.npu.npu_fused_infer_attention_score(
        queries,
        blocks[:-1],
        blocks[1:],
        atten_mask=mask,
        actual_seq_lengths_kv=group.lengths,
        block_table=table,
        num_heads=queries.shape[1],
        scale=float(scale),
        input_layout="BNSD",
        num_key_value_heads=kv_heads,
        block_size=PAGE,
    )
    return mixed.view(q.shape)


def _find_blocks(group: _Group, window: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the blocks of keys, and which positions in them a row does not see: bool [sequences, 1, 1, positions].

    Pages before the window may belong to others by now: the first page in it stands for them, and is masked there.
    """
    is_fixed = isinstance(group.ends, np.ndarray)  # a captured graph is replayed with other lengths
    if window is None or (is_fixed and max(group.lengths) <= window):
        return (group.table * 2).contiguous(), None
    device, columns = group.table.device, group.table.shape[1]
    ends = torch.from_numpy(group.ends).to(device) if is_fixed else group.ends
    ends = ends.long().unsqueeze(1)
    begins = (ends - window).clamp(min=0)
    places = torch.arange(columns * PAGE, device=device)
    mask = (places < begins) | (places >= ends)
    chosen = torch.maximum(torch.arange(columns, device=device), (begins // PAGE).clamp(max=columns - 1))
    return (group.table.gather(1, chosen) * 2).contiguous(), mask[:, None, None]


def _attend_to_gathered(group: _Group, q: Tensor, cache: Tensor, scale: float, window: int | None) -> Tensor:
    """Attend from the rows of each sequence to its gathered pages, causally to the end of its positions."""
    if window is not None:
        group = STEP.share("npu window", (group.table,), (window,), lambda: _leave_out_pages(group, window))
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    count, columns = group.table.shape
    queries = q.reshape(count, group.num_rows, -1, head_dim).transpose(1, 2).contiguous()
    size = max(1, MAX_GATHERED // (2 * kv_heads * columns * PAGE * head_dim))
    band = {} if window is None else {"pre_tokens": window - 1, "next_tokens": 0}
    found = []
    for first in range(0, count, size):
        part = slice(first, first + size)
        keys, values = gather_pages(cache, group.table[part])
        mixed, _ = torch.ops.npu.npu_fused_infer_attention_score(
            queries[part],
            keys,
            values,
            atten_mask=causal_mask(q.device),
            actual_seq_lengths=group.real[part],
            actual_seq_lengths_kv=group.lengths[part],
            num_heads=queries.shape[1],
            scale=float(scale),
            input_layout="BNSD",
            num_key_value_heads=kv_heads,
            sparse_mode=CAUSAL if window is None else BAND,
            **band,
        )
        found.append(mixed)
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole.transpose(1, 2).reshape(q.shape)


def _leave_out_pages(group: _Group, window: int) -> _Group:
    """Return a group without the pages before the window of its first row; positions count from the first page left."""
    firsts = [max(0, end - real - window + 1) // PAGE for end, real in zip(group.lengths, group.real, strict=True)]
    left = [end - first * PAGE for end, first in zip(group.lengths, firsts, strict=True)]
    columns = max(1, -(-max(left) // PAGE))
    numbers = np.array(firsts)[:, None] + np.arange(columns)
    chosen = torch.from_numpy(numbers.clip(max=group.table.shape[1] - 1)).to(group.table.device)
    return group._replace(lengths=left, table=group.table.gather(1, chosen))


def gather_pages(cache: Tensor, table: Tensor) -> Tensor:
    """Return the keys and values in pages: [2, sequences, kv_heads, columns * 64, head_dim]."""
    kv_heads, head_dim = cache.shape[2], cache.shape[4]

    def number_tiles() -> Tensor:
        half = torch.arange(2, device=table.device).view(-1, 1, 1, 1)
        head = torch.arange(kv_heads, device=table.device).view(-1, 1)
        wide = table.clamp(0, cache.shape[0] - 1).long().unsqueeze(1)
        return ((wide * 2 + half) * kv_heads + head).flatten()

    tiles = STEP.share("npu tiles", (table,), (kv_heads,), number_tiles)
    found = cache.view(-1, PAGE * head_dim).index_select(0, tiles)
    return found.view(2, len(table), kv_heads, -1, head_dim)


_MASKS: dict[torch.device, Tensor] = {}


def causal_mask(device: torch.device) -> Tensor:
    """Return the mask of the sparse modes, true where a row does not see: bool [2048, 2048], one for each device."""
    if device not in _MASKS:
        _MASKS[device] = torch.ones(MASK_SIDE, MASK_SIDE, dtype=torch.bool, device=device).triu(1)
    return _MASKS[device]


@TABLE.fused(ops.store_latent, RMS_NORM, ROTARY_MUL, SCATTER)
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
    """Normalize latents, rotate keys, and write both as one row."""
    if not isinstance(cache, Tensor) or cache.dtype not in NARROW:
        how = {"eps": eps, "style": style}
        fall_back(ops.store_latent, "unsupported KV cache type", x, weight, positions, table, cache, slots, **how)
        return ()
    rank, width = len(weight), x.shape[1]
    keys = x[:, rank:].contiguous()
    if positions is not None and table is not None:
        keys = rope(keys, positions, table, head_dim=width - rank, style=style)
    rows = torch.cat((rms_norm(x[:, :rank].contiguous(), weight, eps=eps), keys), dim=1)
    places = STEP.share("npu slots", (slots,), (), lambda: slots.long().view(-1, 1))
    torch.ops.npu.npu_scatter_nd_update_(cache.view(-1, width), places, _to_bits(cache, rows))
    return ()


@TABLE.fused(ops.latent_attention, LATENT_ATTENTION, LATENT_BAND)
def latent_attention(
    latent: Tensor, q: Tensor, cache: Cache, starts: Any, lengths: Any, pages: Tensor, *, heads: int, scale: float
) -> Tensor:
    """Attend from all heads of a row to the latents and rotated keys of gathered pages, group by group."""
    reason = find_latent_limit(latent, cache, heads)
    if reason:
        args = (latent, q, cache, starts, lengths, pages)
        return fall_back(ops.latent_attention, reason, *args, heads=heads, scale=scale)
    assert isinstance(cache, Tensor)
    queries = latent.to(cache.dtype).unflatten(1, (heads, -1))
    rotated = q.unflatten(1, (heads, -1))[..., :LATENT_ROTARY].to(cache.dtype)

    def attend(group: _Group) -> Tensor:
        is_long = group.num_rows > MAX_LATENT_ROWS and heads == BAND_HEADS and max(group.lengths) <= MAX_BAND_KEYS
        function = _attend_to_latents_in_band if is_long else _attend_to_latents
        return function(group, queries[group.rows], rotated[group.rows], cache, scale)

    groups = _share_groups(starts, lengths, pages, len(q))
    return _attend(groups, queries, attend).flatten(1).to(latent.dtype)


def find_latent_limit(latent: Tensor, cache: Cache, heads: int) -> str:
    """Return the limit of latent attention's operators that a call exceeds, or ""."""
    if not isinstance(cache, Tensor) or cache.dtype not in NARROW:
        return "KV cache is not f16 or bf16"
    rank = latent.shape[1] // heads
    if (rank, cache.shape[4] - rank) != (LATENT_RANK, LATENT_ROTARY):
        return f"latents of {rank} numbers with keys of {cache.shape[4] - rank}"
    return "" if heads in LATENT_HEADS else f"{heads} heads"


def _gather_latents(cache: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return latents and rotated keys: [sequences, positions, 512] and [sequences, positions, 64]."""
    held = cache.view(cache.shape[0], -1).index_select(0, table.clamp(0, cache.shape[0] - 1).long().flatten())
    rows = held.view(len(table), -1, cache.shape[4])
    return rows[..., :LATENT_RANK].contiguous(), rows[..., LATENT_RANK:].contiguous()


def _split_group(group: _Group, width: int) -> Iterator[slice]:
    """Yield parts of a group that gather at most MAX_GATHERED numbers each."""
    size = max(1, MAX_GATHERED // (group.table.shape[1] * PAGE * width))
    for first in range(0, len(group.lengths), size):
        yield slice(first, min(first + size, len(group.lengths)))


def _attend_to_latents(group: _Group, queries: Tensor, rotated: Tensor, cache: Tensor, scale: float) -> Tensor:
    """Attend from each sequence's rows, 16 at a time, to blocks of 128 positions."""
    count, rows, heads = len(group.lengths), group.num_rows, queries.shape[1]
    table = pad(group.table, (0, group.table.shape[1] % 2))  # whole blocks: any page fills the last one up
    wide, narrow = (x.view(count, rows, heads, -1).transpose(1, 2) for x in (queries, rotated))
    out = torch.empty_like(wide)
    for part in _split_group(group, cache.shape[4]):
        latents, keys = (x.view(-1, 1, LATENT_BLOCK, x.shape[-1]) for x in _gather_latents(cache, table[part]))
        blocks = torch.arange(len(latents), dtype=torch.int32, device=table.device).view(-1, table.shape[1] // 2)
        for first in range(0, rows, MAX_LATENT_ROWS):
            stop = min(first + MAX_LATENT_ROWS, rows)
            chunk: dict[str, Any] = {}
            lengths = group.lengths[part]
            if rows > 1:
                ends = [max(1, min(real, stop)) for real in group.real[part]]
                lengths = [held - real + end for held, real, end in zip(lengths, group.real[part], ends, strict=True)]
                counts = [max(1, end - first) for end in ends]
            if stop - first > 1:
                chunk = {"atten_mask": causal_mask(cache.device), "sparse_mode": CAUSAL, "actual_seq_qlen": counts}
            out[part, :, first:stop], _ = torch.ops.npu.npu_fused_infer_attention_score_v2(
                wide[part, :, first:stop].contiguous(),
                latents,
                latents,
                query_rope=narrow[part, :, first:stop].contiguous(),
                key_rope=keys,
                actual_seq_kvlen=lengths,
                block_table=blocks,
                num_query_heads=heads,
                num_key_value_heads=1,
                softmax_scale=float(scale),
                input_layout="BNSD",
                block_size=LATENT_BLOCK,
                **chunk,
            )
    return out.transpose(1, 2).reshape(queries.shape)


def _attend_to_latents_in_band(group: _Group, queries: Tensor, rotated: Tensor, cache: Tensor, scale: float) -> Tensor:
    """Attend from longer chunks of 128 heads: the operator takes them in a band, which holds all earlier positions."""
    count, rows, heads = len(group.lengths), group.num_rows, queries.shape[1]
    wide, narrow = (x.view(count, rows, heads, -1) for x in (queries, rotated))
    found = []
    for part in _split_group(group, cache.shape[4]):
        latents, keys = (x.unsqueeze(2) for x in _gather_latents(cache, group.table[part]))
        mixed, _ = torch.ops.npu.npu_fused_infer_attention_score(
            wide[part].contiguous(),
            latents,
            latents,
            query_rope=narrow[part].contiguous(),
            key_rope=keys,
            atten_mask=causal_mask(wide.device),
            actual_seq_lengths=group.real[part],
            actual_seq_lengths_kv=group.lengths[part],
            num_heads=heads,
            scale=float(scale),
            input_layout="BSND",
            num_key_value_heads=1,
            sparse_mode=BAND,
            pre_tokens=MAX_NUMBERS,
            next_tokens=0,
        )
        found.append(mixed)
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole.reshape(queries.shape)


@TABLE.fused(ops.cross_attention, ATTENTION)
def cross_attention(q: Tensor, k: Tensor, v: Tensor, spans: Any, *, head_dim: int, scale: float) -> Tensor:
    """Attend from runs of rows to the keys of each run. Heads are filled up with zeros to a multiple of 16 numbers."""
    heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
    if q.dtype not in NARROW or k.dtype is not q.dtype or v.dtype is not q.dtype:
        reason = "activations are not f16 or bf16"
    elif heads > MAX_HEADS or heads // kv_heads > MAX_GROUP or head_dim > MAX_HEAD_DIM:
        reason = f"{heads} heads of size {head_dim}"
    else:
        reason = ""
    if reason:
        return fall_back(ops.cross_attention, reason, q, k, v, spans, head_dim=head_dim, scale=scale)
    out = torch.empty_like(q)
    for runs, first, rows, begin, keys in _equal_runs(spans):
        mine, seen = slice(first, first + runs * rows), slice(begin, begin + runs * keys)
        queries = _pad_heads(q[mine].reshape(runs, rows, heads, head_dim))
        held, values = (_pad_heads(x[seen].reshape(runs, keys, kv_heads, head_dim)) for x in (k, v))
        mixed, _ = torch.ops.npu.npu_fused_infer_attention_score(
            queries,
            held,
            values,
            num_heads=heads,
            scale=float(scale),
            input_layout="BSND",
            num_key_value_heads=kv_heads,
        )
        out[mine] = mixed[..., :head_dim].reshape(runs * rows, -1)
    return out


def _pad_heads(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % HEAD_STEP
    return pad(x, (0, missing)) if missing else x.contiguous()


# ---- experts


@TABLE.fused(ops.route, GATING)
def route(logits: Tensor, selection_bias: Tensor | None = None, factors: Tensor | None = None, **how: Any) -> Any:
    """Take the softmax over all experts, then the k largest. The order of equal scores is the operator's."""
    return route_by_softmax(_select_experts, logits, selection_bias, factors, **how)


def _select_experts(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits, None, k)
    return weights, ids


@TABLE.fused(ops.linear_experts, GROUPED_MATMUL)
def linear_experts(
    x: Tensor | RoundedRows, weight: TorchWeight, ids: Tensor, bias: Tensor | None = None, *, first: int | None = None
) -> Tensor:
    """Multiply pairs of a row and an expert, sorted by expert, in one call."""
    if first is not None:
        ids, is_foreign = local_experts(ids, first, weight.shape[0])
        return linear_experts(x, weight, ids, bias).masked_fill_(is_foreign.unsqueeze(2), 0)
    reason = _find_expert_limit(x, weight, ids)
    if reason:
        return fall_back(ops.linear_experts, reason, x, weight, ids, bias)
    rows = activation_values(x, weight)
    pairs = ids.flatten().long()
    if rows.dim() == 2:
        rows = rows.repeat_interleave(ids.shape[1], dim=0) if ids.shape[1] > 1 else rows
    else:
        rows = rows.flatten(0, 1)
    order, ends = STEP.share(
        "npu experts", (ids,), (weight.shape[0],), lambda: sort_into_groups(pairs, weight.shape[0])
    )
    products = torch.ops.npu.npu_grouped_matmul(
        [rows[order]],
        [weight.values.transpose(1, 2)],
        group_list=ends.long(),
        split_item=2,
        group_type=0,
        group_list_type=0,
    )[0]
    y = torch.empty_like(products).index_copy_(0, order, products)
    if bias is not None:
        y = y.add_(bias[pairs])
    return y.unflatten(0, ids.shape)


def _find_expert_limit(x: Tensor | RoundedRows, weight: TorchWeight, ids: Tensor) -> str:
    if weight.shape[0] > MAX_EXPERTS:
        return f"{weight.shape[0]} experts"
    if not isinstance(weight._stored, Tensor) and ids.numel() <= weight.shape[0]:
        return "packed weights with few token-expert pairs: cheaper to dequantize only the selected experts"
    return ""


@TABLE.fused(ops.linear_experts_silu_mul, GROUPED_MATMUL)
def linear_experts_silu_mul(
    x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight, ids: Tensor, *, first: int | None = None
) -> Tensor:
    """Multiply by both matrices of each expert, and gate the products."""
    gated = torch.nn.functional.silu(linear_experts(x, gate, ids, first=first))
    return gated.mul_(linear_experts(x, up, ids, first=first))


# ---- quantized weights


class AscendWeight(TorchWeight):
    """A weight whose int8 blocks the NPU multiplies without dequantizing them to memory first.

    Blocks must be groups of at least 32 numbers with a scale and no offset (Q4_0, Q5_0, Q8_0, IQ4_NL).
    """

    def __init__(self, stored: Tensor | Int8Blocks, dtype: torch.dtype, activation: str) -> None:
        super().__init__(stored, dtype, activation)
        self._transposed_scales: Tensor | None = None

    def _multiply_stored(self, x: Tensor, stored: Tensor | Int8Blocks) -> Tensor:
        group = 0 if isinstance(stored, Tensor) else stored.integers.shape[-1] // stored.scales.shape[-1]
        is_small = group < MIN_GROUP or self.shape[-1] <= group
        if isinstance(stored, Tensor) or stored.offsets is not None or is_small or x.dtype not in NARROW:
            return super()._multiply_stored(x, stored)
        if self._transposed_scales is None:
            self._transposed_scales = stored.scales.to(x.dtype).t().contiguous()
        product: Tensor = torch.ops.npu.npu_weight_quant_batchmatmul(
            x, stored.integers.t(), self._transposed_scales, antiquant_group_size=group
        )
        return product


# ---- captured graphs


class AclGraphDevice(TorchGraphCapture):
    """Graphs of torch_npu. Lengths that attention takes as lists are updated."""

    def capture(self, work: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        graph = self.module.NPUGraph()
        how = {"auto_dispatch_capture": True, "capture_error_mode": "thread_local"}
        with self.module.graph(graph, pool=self._pool, **how):
            outputs = work()
        return graph, outputs

    def update(self, graph: Any, arrays: Mapping[str, Handle]) -> None:
        """Give all calls of attention the step's lengths. The replayed graph waits for them."""
        if "lengths" in arrays:
            lengths = host_list(arrays["lengths"])
            graph.update(cpu_update_input=[dict.fromkeys(("actual_seq_lengths_kv", "actual_seq_kvlen"), lengths)])


class AclGraphProgram(GraphProgram):
    """A program that captures steps in which every sequence has one row; longer chunks run call by call."""

    def can_capture(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> bool:
        is_decoding = extents.get("tokens") == extents.get("sequences")
        return is_decoding and super().can_capture(arrays, extents)


class AscendBackend(VendorBackend):
    """An Ascend NPU through torch_npu."""

    name = "ascend"
    vendor = "Huawei Ascend"
    kind = "npu"
    extension = "torch_npu"
    table = TABLE
    graph_class = "NPUGraph"

    def use_device(self, device: torch.device) -> None:
        super().use_device(device)
        self.has_quantized_products = not QUANTIZED_MATMUL.find_obstacle()

    def open_graph_device(self, module: Any) -> GraphDevice:
        return AclGraphDevice(module, self.graph_class)

    @enters_context
    def pack(self, weight: WeightArray) -> ArrayTensor:
        """Store a weight as the torch back-end does; the NPU multiplies int8 blocks as they are."""
        packed = super().pack(weight)
        stored = packed.storage
        if not isinstance(stored, TorchWeight) or not self.has_quantized_products or len(stored.shape) != 2:
            return packed
        own = AscendWeight(stored._plain(), stored.dtype, stored.activation)
        return ArrayTensor(packed.dtype, packed.layout, own, self)

    @enters_context
    def upload(self, array: np.ndarray) -> Handle:
        """Begin to copy an array; lengths keep their numbers beside the tensor, for operators that take lists."""
        uploaded = super().upload(array)
        if array.dtype == np.int32 and array.ndim == 1:
            uploaded.host_values = array.copy()
        return uploaded

    def captured_program(self, graph: Graph) -> Program:
        assert self.graph_device is not None
        return AclGraphProgram(graph, self, self.graph_device)
