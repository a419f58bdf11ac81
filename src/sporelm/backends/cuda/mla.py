"""Multi-head latent attention: a program for a tile of queries of all heads, which attend to the same latent rows."""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import IS_INTERPRETED, dot, load_wide, narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.page_access import BLOCK_PAGES, PAGE_ROWS, cache_arrays, load_tile, store_rows
from sporelm.backends.cuda.query_tiles import (
    LOG2_E,
    SPLIT,
    Mask,
    add_keys,
    allocate_partials,
    find_span,
    find_tiles,
    load_rows,
    merge_splits,
    store_partial,
)
from sporelm.backends.cuda.rotary_embedding import MIN_COLUMNS, NUM_WARPS, STYLES, rotate_heads
from sporelm.backends.torch.mla import store_latent as store_by_torch
from sporelm.backends.torch.torch_pages import Cache

MIN_DOT = 16  # the least sides of a product of tiles

_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)


@triton.jit
def latent_attention_kernel(
    latent, q, values, scales, tiles, tables, out, partial, statistics,
    latent_stride, q_stride, out_stride, table_stride, num_splits, min_rows, max_rows, scale,
    GROUP: tl.constexpr, KIND: tl.constexpr, HEAD_DIM: tl.constexpr, RANK: tl.constexpr, ROTARY: tl.constexpr,
    COLUMNS: tl.constexpr, ROTARY_COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HELD: tl.constexpr, SPLIT_SIZE: tl.constexpr,
):  # fmt: skip
    """Attend with a tile of BLOCK_M queries, of the rows of one chunk and all their heads.

    With SPLIT_SIZE the program has the positions of one split and writes its part of the sums, else it has all
    positions and writes the result.
    """
    tile = tl.program_id(0)
    if SPLIT_SIZE == 0:
        tile = tl.num_programs(0) - 1 - tile  # the last rows of a chunk have the most keys: they begin first
    sequence, first_row, rows, length, first, capacity, row, head = load_rows(tiles, tile, GROUP, BLOCK_M)
    column, turned_column = tl.arange(0, COLUMNS)[None, :], tl.arange(0, ROTARY_COLUMNS)[None, :]
    number = first + tl.arange(0, BLOCK_M)
    is_real = number < rows * GROUP
    place = out + (first_row + number // GROUP).to(tl.int64)[:, None] * out_stride + head[:, None] * RANK + column
    is_there = (number < capacity * GROUP)[:, None] & (column < RANK)
    if rows < min_rows or rows > max_rows or first >= rows * GROUP:
        if SPLIT_SIZE == 0:  # rows behind the real ones of a padded block
            zeros = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
            tl.store(place, zeros.to(out.dtype.element_ty), mask=is_there & ~is_real[:, None])
        return
    _, high, lowest = find_span(rows, length, first, GROUP, BLOCK_M, 0, 0)
    position = length - rows + row
    start, stop = lowest, high + 1
    if SPLIT_SIZE > 0:
        start = tl.program_id(1) * SPLIT_SIZE
        if start > high:
            return
        stop = tl.minimum(stop, start + SPLIT_SIZE)
    token = (first_row + row).to(tl.int64)[:, None]
    queries = tl.load(latent + token * latent_stride + head[:, None] * RANK + column, mask=column < RANK, other=0.0)
    turned = tl.load(
        q + token * q_stride + head[:, None] * HEAD_DIM + turned_column, mask=turned_column < ROTARY, other=0.0
    )
    table = tables + sequence.to(tl.int64) * table_stride
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    for at in tl.range(start, stop, BLOCK_N):
        page_column = at // PAGE_ROWS
        page = tl.load(table + page_column).to(tl.int64)
        held = page * PAGE_ROWS + (at - page_column * PAGE_ROWS)
        key = at + tl.arange(0, BLOCK_N)
        is_inside = key < stop
        latents = load_tile(
            values, scales, held, is_inside, queries.dtype, KIND, RANK + ROTARY, 0, RANK, BLOCK_N, COLUMNS
        )
        keys = load_tile(
            values, scales, held, is_inside, queries.dtype, KIND, RANK + ROTARY, RANK, ROTARY, BLOCK_N, ROTARY_COLUMNS
        )
        scores = dot(queries, tl.trans(latents), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
        scores = dot(turned, tl.trans(keys), scores) * (scale * _LOG2_E)
        is_seen = (key[None, :] <= position[:, None]) & is_inside[None, :]
        scores = tl.where(is_seen, scores, float("-inf"))
        peak, total, mixed = add_keys(scores, latents, peak, total, mixed)
    if SPLIT_SIZE > 0:
        split = tile.to(tl.int64) * num_splits + tl.program_id(1)
        store_partial(partial, statistics, split, peak, total, mixed, is_real, RANK, COLUMNS, HELD, BLOCK_M)
    else:
        result = tl.where(is_real[:, None], mixed / total[:, None], 0.0)
        tl.store(place, narrow(result, out.dtype.element_ty), mask=is_there)


@triton.jit
def store_latent_kernel(
    x, weight, positions, table, values, scales, slots, x_stride, eps,
    KIND: tl.constexpr, RANK: tl.constexpr, ROTARY: tl.constexpr, IS_TURNED: tl.constexpr, STYLE: tl.constexpr,
    COLUMNS: tl.constexpr, ROTARY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a row to its slot: its first RANK numbers with their norm, the others rotated."""
    row = tl.program_id(0).to(tl.int64)
    held = tl.zeros((1, 1), tl.int64) + tl.load(slots + row).to(tl.int64)
    is_inside = held >= 0
    column = tl.arange(0, COLUMNS)[None, :]
    latents = load_wide(x + row * x_stride + column, column < RANK)
    scale = 1 / tl.sqrt_rn(tl.sum(latents * latents, 1) / RANK + eps)
    latents = latents * scale[:, None] * load_wide(weight + column, column < RANK)
    latents = narrow(latents, x.dtype.element_ty).to(tl.float32)
    position = tl.zeros((), tl.int64)
    if IS_TURNED:
        position = tl.load(positions + row).to(tl.int64)
    turned = rotate_heads(
        x + row * x_stride + RANK, positions, position, table, tl.full((1,), True, tl.int1),
        ROTARY, ROTARY if IS_TURNED else 0, STYLE, False, 1, ROTARY_COLUMNS,
    )  # fmt: skip
    turned = narrow(turned, x.dtype.element_ty).to(tl.float32)
    store_rows(values, scales, held, latents, is_inside, KIND, RANK + ROTARY, 0, RANK, COLUMNS)
    store_rows(values, scales, held, turned, is_inside, KIND, RANK + ROTARY, RANK, ROTARY, ROTARY_COLUMNS)


@launches(ops.store_latent)
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
    """Apply a norm to the first part of each row, rotate the rest, and write the row to its slot."""
    rank, held = weight.shape[0], cache_arrays(cache)
    rotary = x.shape[1] - rank
    if held.kind == BLOCK_PAGES and rank % MIN_COLUMNS != 0:  # a block has numbers of both parts
        return store_by_torch(x, weight, positions, table, cache, slots, eps=eps, style=style)
    x = x if x.stride(1) == 1 else x.contiguous()
    launch(
        store_latent_kernel,
        (x.shape[0],),
        *(x, weight, positions, table, held.values, held.scales, slots, x.stride(0), eps),
        KIND=held.kind,
        RANK=rank,
        ROTARY=rotary,
        IS_TURNED=table is not None,
        STYLE=0 if table is None else STYLES[style],
        COLUMNS=max(triton.next_power_of_2(rank), MIN_COLUMNS),
        ROTARY_COLUMNS=max(triton.next_power_of_2(rotary), MIN_COLUMNS),
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )
    return ()


@lru_cache
def _has_large_tiles(device: torch.device) -> bool:
    """Return whether tiles of 64 queries fit: their products read queries from 144 KB of shared memory.
    Elsewhere queries are in registers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _choose_tile(latent: Tensor) -> tuple[int, int, int, int]:
    """Return the queries (at most) and keys of a tile, warps and stages."""
    if latent.dtype is torch.float32 and not IS_INTERPRETED:  # products without tensor cores
        return 16, 16, 4, 1
    return 64 if _has_large_tiles(latent.device) or IS_INTERPRETED else 32, 32, 8, 2


@launches(ops.latent_attention)
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
    """Attend causally to the latent rows of each sequence's pages. `starts` and `lengths` are numpy arrays, or on the
    device in a padded step."""
    latent, q, pages = (x if x.stride(1) == 1 else x.contiguous() for x in (latent, q, pages))
    rank, head_dim = latent.shape[1] // heads, q.shape[1] // heads
    rotary = cache.shape[4] - rank
    columns, rotary_columns = (max(triton.next_power_of_2(width), MIN_DOT) for width in (rank, rotary))
    held = cache_arrays(cache)
    out = torch.empty(latent.shape, dtype=latent.dtype, device=latent.device)
    block_m, block_n, num_warps, num_stages = _choose_tile(latent)
    for tiles in find_tiles(starts, lengths, pages, q.shape[0], heads, Mask(), block_m):
        is_split = tiles.num_splits > 0
        for table in tiles.slices(rank) if is_split else (tiles.table,):
            partials = allocate_partials(table, tiles, 1, rank) if is_split else (None, None)
            launch(
                latent_attention_kernel,
                (len(table), max(tiles.num_splits, 1)),
                *(latent, q, held.values, held.scales, table, pages, out, *partials),
                *(latent.stride(0), q.stride(0), out.stride(0), pages.stride(0), tiles.num_splits),
                *(tiles.min_rows, tiles.max_rows, scale),
                GROUP=heads,
                KIND=held.kind,
                HEAD_DIM=head_dim,
                RANK=rank,
                ROTARY=rotary,
                COLUMNS=columns,
                ROTARY_COLUMNS=rotary_columns,
                BLOCK_M=tiles.block_rows,
                BLOCK_N=block_n,
                HELD=tiles.held_rows,
                SPLIT_SIZE=SPLIT if is_split else 0,
                num_warps=num_warps,
                num_stages=num_stages,
            )
            if partials[0] is not None and partials[1] is not None:
                merge_splits((partials[0], partials[1]), table, tiles, out, None, heads, Mask())
    return out
