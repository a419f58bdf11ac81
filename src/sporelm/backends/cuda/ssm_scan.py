"""Mamba 2's scan: a program for each slice of columns of each head of each sequence."""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import (
    find_sequences,
    read_sequence,
    softplus,
    state_grid,
    state_tile,
)


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
    tile = state_tile(size, head_dim)
    launch(
        scan_rows_kernel,
        state_grid(tile, head_dim, heads, sequences.every),
        *(x, dt, decay, skip, bias, state, sequences.every, out),
        *(x.shape[1], heads, groups, low, high),
        SIZE=size,
        HEAD_DIM=head_dim,
        **tile,
    )
    return out
