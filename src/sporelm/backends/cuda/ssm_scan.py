"""Mamba 2's scan: a program for each slice of columns of each head of each sequence.

Row by row, results do not depend on how a sequence is cut into steps. Prompts in bfloat16 go through chunks of 64 rows
on tensor cores: a chunk begins where the step's rows of its sequence begin, so cuts change results by rounding
errors. Batch-invariant steps go row by row.
"""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import dot, load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import (
    CHUNK,
    find_sequences,
    read_piece,
    read_sequence,
    softplus,
    state_grid,
    state_tile,
)
from sporelm.backends.cuda.state_chunks import ADDED, LAST, READ, new_products, pass_chunks, product_size

PRODUCT_WARPS = 8


@triton.jit
def scan_rows_kernel(
    x, dt, decay, skip, bias, state, table, out, stride, heads, groups, low, high,
    SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with V columns of a head's state: decay, add, read."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    has_k, has_v = k < SIZE, v < HEAD_DIM
    state_rows = (slot * heads + head) * SIZE + k
    places = state + state_rows[:, None] * HEAD_DIM + v[None, :]
    inside = has_k[:, None] & has_v[None, :]
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    rate, offset, skipped = tl.load(decay + head), tl.load(bias + head), tl.load(skip + head)
    values = x + first * stride + head * HEAD_DIM + v
    writes = x + first * stride + heads * HEAD_DIM + head // (heads // groups) * SIZE + k
    reads = writes + groups * SIZE
    dt += first * heads + head
    out += first * heads * HEAD_DIM + head * HEAD_DIM + v
    # A row's numbers are loaded while the row before is computed.
    next_value, next_write, next_read = load_wide(values, has_v), load_wide(writes, has_k), load_wide(reads, has_k)
    next_step = load_wide(dt, rows > 0)
    for row in range(rows):
        value, write, read, step = next_value, next_write, next_read, next_step
        values += stride
        writes += stride
        reads += stride
        dt += heads
        is_more = row + 1 < rows
        next_value, next_step = load_wide(values, has_v & is_more), load_wide(dt, is_more)
        next_write, next_read = load_wide(writes, has_k & is_more), load_wide(reads, has_k & is_more)
        step = tl.minimum(tl.maximum(softplus(step + offset), low), high)
        s = s * tl.exp(step * rate) + write[:, None] * (step * value)[None, :]
        store_narrow(out, tl.sum(s * read[:, None], 0) + skipped * value, has_v)
        out += heads * HEAD_DIM
    tl.store(places, s, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def scan_products_kernel(
    x, dt, decay, skip, bias, chunks, scores, factors, stride, heads, groups, tokens, low, high,
    SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the products of a chunk's rows for a head."""
    _, _, _, _, first, count, _ = read_piece(chunks, tl.program_id(1))
    if count == 0:
        return
    head = tl.program_id(0)
    k, row = tl.arange(0, K), tl.arange(0, ROWS)
    place = first + row
    is_row = row < count
    inside = is_row[:, None] & (k < SIZE)[None, :]
    writes = x + heads * HEAD_DIM + head // (heads // groups) * SIZE + k[None, :] + place[:, None] * stride
    write = tl.load(writes, mask=inside, other=0.0)
    read = tl.load(writes + groups * SIZE, mask=inside, other=0.0)
    step = softplus(load_wide(dt + place * heads + head, is_row) + tl.load(bias + head))
    step = tl.where(is_row, tl.minimum(tl.maximum(step, low), high), 0.0)
    logs = step * tl.load(decay + head)
    sums, last = tl.cumsum(logs, 0), tl.sum(logs, 0)
    score = dot(read, tl.trans(write), tl.zeros((ROWS, ROWS), tl.float32)) * step[None, :]
    is_past = row[:, None] >= row[None, :]
    score *= tl.exp(tl.where(is_past, sums[:, None] - sums[None, :], float("-inf")))
    score += tl.where(row[:, None] == row[None, :], tl.load(skip + head), 0.0)
    head_tokens = head.to(tl.int64) * tokens
    store_narrow(scores + (head_tokens + place)[:, None] * ROWS + row[None, :], score, is_row[:, None])
    factors += head_tokens + place
    factor_stride = tokens.to(tl.int64) * heads
    tl.store(factors + READ * factor_stride, tl.exp(sums), mask=is_row)
    tl.store(factors + ADDED * factor_stride, step * tl.exp(last - sums), mask=is_row)
    tl.store(factors + LAST * factor_stride, tl.exp(last) + sums * 0, mask=is_row)


@launches(ops.ssm_scan)
def ssm_scan(
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    skip: Tensor,
    bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    groups: int,
    low: float = 0.0,
    high: float = math.inf,
) -> Tensor:
    """Compute `ops.ssm_scan`."""
    heads, head_dim = len(decay), state.shape[2]
    size = state.shape[1] // heads
    x, dt = x.contiguous(), dt.contiguous()
    sequences = find_sequences(starts, lengths, states, x)
    out = sequences.new_results(x, heads * head_dim)
    has_chunks = sequences.has_chunks(x)
    table = sequences.few if has_chunks else sequences.every
    tile = state_tile(size, head_dim)
    launch(
        scan_rows_kernel,
        state_grid(tile, head_dim, heads, table),
        *(x, dt, decay, skip, bias, state, table, out, x.shape[1], heads, groups, low, high),
        SIZE=size,
        HEAD_DIM=head_dim,
        **tile,
    )
    if has_chunks:
        products = new_products(x, heads, is_delta=False)
        launch(
            scan_products_kernel,
            (heads, len(sequences.chunks)),
            *(x, dt, decay, skip, bias, sequences.chunks, products.scores, products.factors),
            *(x.shape[1], heads, groups, x.shape[0], low, high),
            SIZE=size,
            HEAD_DIM=head_dim,
            K=product_size(size),
            ROWS=CHUNK,
            num_warps=PRODUCT_WARPS,
        )
        values, keys, queries = x.split((heads * head_dim, groups * size, groups * size), dim=1)
        pass_chunks(sequences, queries, keys, values, products, state, out, heads, groups, is_each=True)
    return out
