"""Lightning attention: a program for each slice of columns of each head of each sequence, row by row.

Results do not depend on how a sequence is cut into steps.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import find_sequences, read_sequence, state_grid, state_tile


@triton.jit
def lightning_rows_kernel(
    x, decay, state, table, out, heads, DIM: tl.constexpr, K: tl.constexpr, V: tl.constexpr
):  # fmt: skip
    """Go through a sequence's rows with V columns of a head's state: decay, add, read."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    has_k, has_v = k < DIM, v < DIM
    places = state + ((slot * heads + head) * DIM + k)[:, None] * DIM + v[None, :]
    inside = has_k[:, None] & has_v[None, :]
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    kept = tl.load(decay + head)
    stride = heads * 3 * DIM
    queries = x + first * stride + head * 3 * DIM + k
    values = x + first * stride + head * 3 * DIM + 2 * DIM + v
    out += (first * heads + head) * DIM + v
    # A row's numbers are loaded while the row before is computed.
    next_query, next_key = load_wide(queries, has_k), load_wide(queries + DIM, has_k)
    next_value = load_wide(values, has_v)
    for row in range(rows):
        query, key, value = next_query, next_key, next_value
        queries += stride
        values += stride
        is_more = row + 1 < rows
        next_query, next_key = load_wide(queries, has_k & is_more), load_wide(queries + DIM, has_k & is_more)
        next_value = load_wide(values, has_v & is_more)
        s = s * kept + key[:, None] * value[None, :]
        store_narrow(out, tl.sum(s * query[:, None], 0), has_v)
        out += heads * DIM
    tl.store(places, s, mask=inside)


@launches(ops.lightning_attention)
def lightning_attention(x: Tensor, decay: Tensor, state: Tensor, starts: Any, lengths: Any, states: Any) -> Tensor:
    """Compute `ops.lightning_attention`."""
    heads, dim = len(decay), state.shape[2]
    x = x.contiguous()
    sequences = find_sequences(starts, lengths, states, x)
    out = sequences.new_results(x, heads * dim)
    tile = state_tile(dim, dim)
    launch(
        lightning_rows_kernel,
        state_grid(tile, dim, heads, sequences.every),
        *(x, decay, state, sequences.every, out, heads),
        DIM=dim,
        **tile,
    )
    return out
