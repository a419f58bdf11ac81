"""Attention over a paged KV cache: a program for a tile of query rows and one head of keys and values."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import IS_INTERPRETED, dot, narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.page_access import (
    BLOCK_PAGES,
    FLOAT_PAGES,
    FP8_PAGES,
    PAGE_ROWS,
    cache_arrays,
    load_tile,
)
from sporelm.backends.cuda.query_tiles import (
    LOG2_E,
    SPLIT,
    Mask,
    add_keys,
    allocate_partials,
    find_last,
    find_lowest,
    find_span,
    find_tiles,
    load_rows,
    merge_splits,
    store_partial,
)
from sporelm.backends.cuda.rotary_embedding import launch_rotate_and_store
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_pages import Cache

MIN_DOT = 16  # the least sides of a product of tiles

_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)


@triton.jit
def _attend_range(
    queries, peak, total, mixed, start, stop, lowest, position, last, values, scales, table, kv_head, kv_heads, scale,
    slope, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, HAS_SLOPES: tl.constexpr,
    IS_MASKED: tl.constexpr, KIND: tl.constexpr, HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the keys at start : stop, where `start` is a multiple of BLOCK_N. Keys below `lowest` are not read. Rows at
    `position` see those up to `last`.

    Without IS_MASKED each row sees all of them, and `stop` is a multiple of BLOCK_N.
    """
    for place in tl.range(start, stop, BLOCK_N):
        column = place // PAGE_ROWS
        page = tl.load(table + column).to(tl.int64)
        row = (page * 2 * kv_heads + kv_head) * PAGE_ROWS + (place - column * PAGE_ROWS)
        key = place + tl.arange(0, BLOCK_N)
        if IS_MASKED:
            is_inside = (key >= lowest) & (key < stop)
        else:
            is_inside = tl.full((BLOCK_N,), True, tl.int1)
        keys = load_tile(
            values, scales, row, is_inside, queries.dtype, KIND, HEAD_DIM, 0, HEAD_DIM, BLOCK_N, COLUMNS
        )  # fmt: skip
        scores = dot(queries, tl.trans(keys), tl.zeros((queries.shape[0], BLOCK_N), tl.float32))
        if SOFTCAP > 0:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1)
            scores = SOFTCAP - (2 * SOFTCAP) / (tl.exp2(scores * (scale * (2 * _LOG2_E / SOFTCAP))) + 1)
            scores = scores * _LOG2_E
        else:
            scores = scores * (scale * _LOG2_E)
        if HAS_SLOPES:
            scores += slope[:, None] * (key[None, :] - position[:, None]).to(tl.float32)
        if IS_MASKED:
            is_seen = (key[None, :] <= last[:, None]) & is_inside[None, :]
            if WINDOW > 0 or CHUNK > 0:
                is_seen &= key[None, :] >= find_lowest(position, WINDOW, CHUNK)[:, None]
            scores = tl.where(is_seen, scores, float("-inf"))
        found = load_tile(
            values, scales, row + kv_heads * PAGE_ROWS, is_inside, queries.dtype, KIND, HEAD_DIM, 0, HEAD_DIM, BLOCK_N,
            COLUMNS,
        )  # fmt: skip
        peak, total, mixed = add_keys(scores, found, peak, total, mixed)
    return peak, total, mixed


@triton.jit
def attention_kernel(
    q, values, scales, tiles, tables, sinks, slopes, spans, out, partial, statistics,
    q_stride, out_stride, table_stride, kv_heads, num_splits, min_rows, max_rows, scale,
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HELD: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
):  # fmt: skip
    """Attend with a tile of BLOCK_M queries, of the rows of one chunk and the group of one head of keys.

    With SPLIT_SIZE the program has the keys of one split and writes its part of the sums, else it has all keys and
    writes the result.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    if SPLIT_SIZE == 0:
        tile = tl.num_programs(0) - 1 - tile  # the last rows of a chunk have the most keys: they begin first
    sequence, first_row, rows, length, first, capacity, row, head = load_rows(tiles, tile, GROUP, BLOCK_M)
    column = tl.arange(0, COLUMNS)[None, :]
    number = first + tl.arange(0, BLOCK_M)
    is_real = number < rows * GROUP
    head += kv_head * GROUP
    if rows < min_rows or rows > max_rows or first >= rows * GROUP:
        if SPLIT_SIZE == 0:  # rows behind the real ones of a padded block
            beyond = out + (first_row + number // GROUP).to(tl.int64)[:, None] * out_stride + head[:, None] * HEAD_DIM
            is_beyond = (number >= rows * GROUP) & (number < capacity * GROUP)
            zeros = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
            tl.store(beyond + column, zeros.to(out.dtype.element_ty), mask=is_beyond[:, None] & (column < HEAD_DIM))
        return
    low, high, lowest = find_span(rows, length, first, GROUP, BLOCK_M, WINDOW, CHUNK)
    position = length - rows + row
    last, lowest_last, highest_last = position, low, high
    if spans is not None:
        last = find_last(spans, first_row, row, position)
        lowest_last, highest_last = tl.min(last, 0), tl.max(last, 0)
    start, stop = lowest, highest_last + 1
    if SPLIT_SIZE > 0:
        split_start = (lowest // SPLIT_SIZE + tl.program_id(2)) * SPLIT_SIZE
        if split_start > highest_last:
            return
        start, stop = tl.maximum(start, split_start), tl.minimum(stop, split_start + SPLIT_SIZE)
    start = start // BLOCK_N * BLOCK_N
    pointers = q + (first_row + row).to(tl.int64)[:, None] * q_stride + head[:, None] * HEAD_DIM + column
    queries = tl.load(pointers, mask=column < HEAD_DIM, other=0.0)
    table = tables + sequence.to(tl.int64) * table_stride
    slope = tl.zeros((BLOCK_M,), tl.float32)
    if slopes is not None:
        slope = tl.load(slopes + head).to(tl.float32) * _LOG2_E
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    open_start = start
    if SPLIT_SIZE == 0:
        # Between keys that only some rows see, all rows see all keys.
        highest_lowest = find_lowest(high, WINDOW, CHUNK)
        open_start = tl.minimum(tl.maximum(tl.cdiv(highest_lowest, BLOCK_N) * BLOCK_N, start), stop)
        open_stop = tl.maximum((lowest_last + 1) // BLOCK_N * BLOCK_N, open_start)
        if WINDOW > 0 or CHUNK > 0:
            peak, total, mixed = _attend_range(
                queries, peak, total, mixed, start, open_start, lowest, position, last, values, scales, table, kv_head,
                kv_heads, scale, slope, SOFTCAP, WINDOW, CHUNK, slopes is not None, True, KIND, HEAD_DIM, COLUMNS,
                BLOCK_N,
            )  # fmt: skip
        peak, total, mixed = _attend_range(
            queries, peak, total, mixed, open_start, open_stop, lowest, position, last, values, scales, table, kv_head,
            kv_heads, scale, slope, SOFTCAP, WINDOW, CHUNK, slopes is not None, False, KIND, HEAD_DIM, COLUMNS, BLOCK_N,
        )  # fmt: skip
        open_start = open_stop
    peak, total, mixed = _attend_range(
        queries, peak, total, mixed, open_start, stop, lowest, position, last, values, scales, table, kv_head,
        kv_heads, scale, slope, SOFTCAP, WINDOW, CHUNK, slopes is not None, True, KIND, HEAD_DIM, COLUMNS, BLOCK_N,
    )  # fmt: skip
    if SPLIT_SIZE > 0:
        place = (tile.to(tl.int64) * kv_heads + kv_head) * num_splits + tl.program_id(2)
        store_partial(partial, statistics, place, peak, total, mixed, is_real, HEAD_DIM, COLUMNS, HELD, BLOCK_M)
    else:
        if sinks is not None:
            sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
            top = tl.maximum(peak, sink)
            kept = tl.exp2(peak - top)
            total = total * kept + tl.exp2(sink - top)
            mixed *= kept[:, None]
        result = tl.where(is_real[:, None], mixed / total[:, None], 0.0)
        place = out + (first_row + number // GROUP).to(tl.int64)[:, None] * out_stride + head[:, None] * HEAD_DIM
        is_there = (number < capacity * GROUP)[:, None] & (column < HEAD_DIM)
        tl.store(place + column, narrow(result, out.dtype.element_ty), mask=is_there)


def _choose_block(is_wide: bool, kind: int, columns: int, group: int) -> int:
    """Return the queries of a tile of a chunk that is not split."""
    if is_wide and not IS_INTERPRETED:
        return 32
    block = 128 if kind == FLOAT_PAGES and columns <= 128 else 64
    # A tile lies in one block of rows of a padded step.
    return min(block, max(triton.next_power_of_2(STEP.row_block * group), 16)) if STEP.row_block > 1 else block


def _choose_tile(block: int, is_split: bool, is_wide: bool, kind: int, columns: int) -> tuple[int, int, int]:
    """Return the keys of a tile, warps and stages, given its queries."""
    if is_wide and not IS_INTERPRETED:  # float32 queries: products without tensor cores
        return 16 if columns > 128 else 32, 4, 1
    if is_split:
        return 32 if columns > 128 or kind == BLOCK_PAGES else 64, 4, 3
    if columns > 128 or kind == BLOCK_PAGES:
        return 32, 8, 2
    if kind == FP8_PAGES:
        return 32, 4, 2
    return 64, 8 if block > 64 else 4, 2


@launches(ops.attention)
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
    """Attend causally to each sequence's pages. `starts` and `lengths` are numpy arrays, or on the device in a padded
    step."""
    q, pages = (x if x.stride(1) == 1 else x.contiguous() for x in (q, pages))
    spans = None if spans is None else spans.contiguous()
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    group = q.shape[1] // (kv_heads * head_dim)
    columns = max(triton.next_power_of_2(head_dim), MIN_DOT)
    is_wide = q.dtype is torch.float32
    held = cache_arrays(cache)
    mask = Mask(window or 0, chunk or 0)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    long_block = _choose_block(is_wide, held.kind, columns, group)
    for tiles in find_tiles(starts, lengths, pages, q.shape[0], group, mask, long_block, has_spans=spans is not None):
        is_split = tiles.num_splits > 0
        images = None if tiles.max_rows == 1 else spans  # no image goes on behind the only row of a sequence
        block_n, num_warps, num_stages = _choose_tile(tiles.block_rows, is_split, is_wide, held.kind, columns)
        for table in tiles.slices(kv_heads * head_dim) if is_split else (tiles.table,):
            partials = allocate_partials(table, tiles, kv_heads, head_dim) if is_split else (None, None)
            launch(
                attention_kernel,
                (len(table), kv_heads, max(tiles.num_splits, 1)),
                *(q, held.values, held.scales, table, pages, sinks, slopes, images, out, *partials),
                *(q.stride(0), out.stride(0), pages.stride(0), kv_heads, tiles.num_splits),
                *(tiles.min_rows, tiles.max_rows, scale),
                SOFTCAP=softcap or 0.0,
                WINDOW=mask.window,
                CHUNK=mask.chunk,
                GROUP=group,
                KIND=held.kind,
                HEAD_DIM=head_dim,
                COLUMNS=columns,
                BLOCK_M=tiles.block_rows,
                BLOCK_N=block_n,
                HELD=tiles.held_rows,
                SPLIT_SIZE=SPLIT if is_split else 0,
                num_warps=num_warps,
                num_stages=num_stages,
            )
            if partials[0] is not None and partials[1] is not None:
                merge_splits((partials[0], partials[1]), table, tiles, out, sinks, group, mask, images)
    return out


@launches(ops.store_kv)
def store_kv(k: Tensor, v: Tensor, cache: Cache, slots: Tensor) -> tuple[()]:
    """Write each row's keys and values to its slot."""
    launch_rotate_and_store(None, k, v, None, None, cache, slots, cache.shape[4])
    return ()
