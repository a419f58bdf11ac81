"""Rotary embedding, and writes of keys and values to their pages: a program for some heads of a row.

Angles and products are float32, and products are not fused with sums: so a key is rounded to its page as by other
back-ends.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.page_access import PAGE_ROWS, cache_arrays, store_rows
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_pages import Cache

TILE_NUMBERS = 1024  # of a program: its heads times the numbers of each, if it has several heads
MIN_COLUMNS = 32  # of a tile: a Q8_0 block
NUM_WARPS = 4
ADJACENT, HALVES = 1, 2  # styles other than "half"
STYLES = {"half": 0, "adjacent": ADJACENT, "halves": HALVES}

_ADJACENT: tl.constexpr = tl.constexpr(ADJACENT)
_HALVES: tl.constexpr = tl.constexpr(HALVES)


@triton.jit
def rotate_heads(
    x, row_positions, position, table, is_head,
    HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, STYLE: tl.constexpr, HAS_STREAMS: tl.constexpr,
    HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return heads [HEADS, COLUMNS] of a row with their pairs rotated, in float32. `x` points to the first head."""
    column = tl.arange(0, COLUMNS)
    pointers = x + tl.arange(0, HEADS)[:, None] * HEAD_DIM + column[None, :]
    own = load_wide(pointers, is_head[:, None] & (column < HEAD_DIM)[None, :])
    if ROTARY == 0:
        return own
    else:
        HALF: tl.constexpr = ROTARY // 2
        if STYLE == _ADJACENT:
            pair, is_second = column // 2, column % 2 == 1
            partner = tl.where(is_second, column - 1, column + 1)
        elif STYLE == _HALVES:
            QUARTER: tl.constexpr = ROTARY // 4
            is_second = (column // QUARTER) % 2 == 1
            pair = column % QUARTER + column // HALF * QUARTER
            partner = tl.where(is_second, column - QUARTER, column + QUARTER)
        else:
            is_second = column >= HALF
            pair = tl.where(is_second, column - HALF, column)
            partner = tl.where(is_second, pair, column + HALF)
        is_rotary = column < ROTARY
        other = load_wide(
            x + tl.arange(0, HEADS)[:, None] * HEAD_DIM + partner[None, :], is_head[:, None] & is_rotary[None, :]
        )
        if HAS_STREAMS:
            position = tl.load(row_positions + pair, mask=is_rotary, other=0).to(tl.int64)
        angles = table + position * ROTARY + pair
        cosine = load_wide(angles, is_rotary)
        sine = load_wide(angles + HALF, is_rotary)
        sine = tl.where(is_second, sine, -sine)
        turned = own * cosine[None, :] + other * sine[None, :]
        return tl.where(is_rotary[None, :], turned, own)


@triton.jit
def rotate_and_store_kernel(
    q, k, v, positions, table, values, scales, slots, out,
    q_stride, k_stride, v_stride, positions_stride, q_heads, kv_heads, q_programs, kv_programs,
    KIND: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, STYLE: tl.constexpr, HAS_STREAMS: tl.constexpr,
    HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rotate HEADS heads of a row of q into `out`, or of k into its page, or write those of v to its page."""
    row = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    position = tl.zeros((), tl.int64)
    row_positions = positions
    if ROTARY > 0:
        row_positions = positions + row * positions_stride
        if not HAS_STREAMS:
            position = tl.load(row_positions).to(tl.int64)
    lane = tl.arange(0, HEADS)
    if program < q_programs:
        first = program * HEADS
        is_head = first + lane < q_heads
        turned = rotate_heads(
            q + row * q_stride + first * HEAD_DIM, row_positions, position, table, is_head,
            HEAD_DIM, ROTARY, STYLE, HAS_STREAMS, HEADS, COLUMNS,
        )  # fmt: skip
        column = tl.arange(0, COLUMNS)[None, :]
        pointers = out + row * q_heads * HEAD_DIM + (first + lane)[:, None] * HEAD_DIM + column
        tl.store(pointers, narrow(turned, out.dtype.element_ty), mask=is_head[:, None] & (column < HEAD_DIM))
    elif kv_programs > 0:
        slot = tl.load(slots + row).to(tl.int64)
        number = program - q_programs
        first = number % kv_programs * HEADS
        is_head = first + lane < kv_heads
        page_row = (slot // PAGE_ROWS * 2 * kv_heads + (first + lane)[:, None]) * PAGE_ROWS + slot % PAGE_ROWS
        if number < kv_programs:
            turned = rotate_heads(
                k + row * k_stride + first * HEAD_DIM, row_positions, position, table, is_head,
                HEAD_DIM, ROTARY, STYLE, HAS_STREAMS, HEADS, COLUMNS,
            )  # fmt: skip
            # As the rows of a step without fusion, keys are rounded to their own type before their page's.
            turned = narrow(turned, k.dtype.element_ty).to(tl.float32)
            store_rows(values, scales, page_row, turned, is_head[:, None], KIND, HEAD_DIM, 0, HEAD_DIM, COLUMNS)
        else:
            column = tl.arange(0, COLUMNS)[None, :]
            pointers = v + row * v_stride + (first + lane)[:, None] * HEAD_DIM + column
            heads = load_wide(pointers, is_head[:, None] & (column < HEAD_DIM))
            page_row += kv_heads * PAGE_ROWS
            store_rows(values, scales, page_row, heads, is_head[:, None], KIND, HEAD_DIM, 0, HEAD_DIM, COLUMNS)


def _as_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _pair_positions(positions: Tensor, streams: tuple[int, ...] | None) -> Tensor:
    """Return int32 [tokens], or with streams the position of each pair, [tokens, pairs]."""
    if streams is None:
        return positions.contiguous()
    return STEP.share(
        "pair positions",
        (positions,),
        (streams,),
        lambda: torch.cat([positions[:, stream : stream + 1] for stream in streams], dim=1),
    )


def launch_rotate_and_store(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    positions: Tensor | None,
    table: Tensor | None,
    cache: Cache | None,
    slots: Tensor | None,
    head_dim: int,
    style: str = "half",
    streams: tuple[int, ...] | None = None,
) -> Tensor | None:
    """Rotate q, if given, into the result; write k, rotated, and v to the cache, if given. Rotate nothing without a
    table."""
    q, k, v = (None if x is None else _as_rows(x) for x in (q, k, v))
    given = q if q is not None else k
    assert given is not None
    out = None if q is None else torch.empty(q.shape, dtype=q.dtype, device=q.device)
    columns = max(triton.next_power_of_2(head_dim), MIN_COLUMNS)
    q_heads, kv_heads = (0 if x is None else x.shape[1] // head_dim for x in (q, k))
    heads = min(max(TILE_NUMBERS // columns, 1), triton.next_power_of_2(max(q_heads, kv_heads)))
    q_programs, kv_programs = triton.cdiv(q_heads, heads), triton.cdiv(kv_heads, heads)
    places = None if table is None or positions is None else _pair_positions(positions, streams)
    pages = None if cache is None else cache_arrays(cache)
    launch(
        rotate_and_store_kernel,
        (given.shape[0], q_programs + 2 * kv_programs),
        *(q, k, v, places, table),
        *((None, None) if pages is None else (pages.values, pages.scales)),
        *(slots, out),
        *(0 if x is None else x.stride(0) for x in (q, k, v, places)),
        *(q_heads, kv_heads, q_programs, kv_programs),
        KIND=0 if pages is None else pages.kind,
        HEAD_DIM=head_dim,
        ROTARY=0 if table is None else table.shape[1],
        STYLE=STYLES[style],
        HAS_STREAMS=streams is not None,
        HEADS=heads,
        COLUMNS=columns,
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )
    return out


@launches(ops.rope)
def rope(
    x: Tensor,
    positions: Tensor,
    table: Tensor,
    *,
    head_dim: int,
    style: str,
    streams: tuple[int, ...] | None = None,
) -> Tensor:
    """Rotate pairs of each head by the angles of the row's position."""
    out = launch_rotate_and_store(x, None, None, positions, table, None, None, head_dim, style, streams)
    assert out is not None
    return out


@launches(ops.rope_store)
def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    cache: Cache,
    slots: Tensor,
    **how: Any,
) -> Tensor:
    """Rotate q and k, write k and v to their pages, and return the rotated q."""
    out = launch_rotate_and_store(q, k, v, positions, table, cache, slots, **how)
    assert out is not None
    return out
