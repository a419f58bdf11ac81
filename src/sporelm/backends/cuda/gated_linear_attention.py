"""Gated linear attention: a program for each slice of columns of each head of each sequence, row by row.

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

MAX_EXPONENT = tl.constexpr(88.0)  # whose exponential is in range


@triton.jit
def gated_rows_kernel(
    r, w, keys, values, state, table, out, heads, key_heads, scale,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with V columns of a head's state: decay, add, read."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    key_head = head // (heads // key_heads)
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    has_k, has_v = k < KEY_DIM, v < VALUE_DIM
    places = state + ((slot * heads + head) * KEY_DIM + k)[:, None] * VALUE_DIM + v[None, :]
    inside = has_k[:, None] & has_v[None, :]
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    r += (first * heads + head) * KEY_DIM + k
    w += (first * heads + head) * KEY_DIM + k
    keys += (first * key_heads + key_head) * KEY_DIM + k
    values += (first * key_heads + key_head) * VALUE_DIM + v
    out += (first * heads + head) * VALUE_DIM + v
    # A row's numbers are loaded while the row before is computed.
    next_read, next_decay, next_key = load_wide(r, has_k), load_wide(w, has_k), load_wide(keys, has_k)
    next_value = load_wide(values, has_v)
    for row in range(rows):
        read, key, value = next_read, next_key, next_value
        kept = tl.exp(-tl.exp(tl.minimum(next_decay, MAX_EXPONENT)))
        r += heads * KEY_DIM
        w += heads * KEY_DIM
        keys += key_heads * KEY_DIM
        values += key_heads * VALUE_DIM
        is_more = row + 1 < rows
        next_read, next_decay = load_wide(r, has_k & is_more), load_wide(w, has_k & is_more)
        next_key, next_value = load_wide(keys, has_k & is_more), load_wide(values, has_v & is_more)
        s = s * kept[:, None] + (key * (1 - kept))[:, None] * value[None, :]
        store_narrow(out, tl.sum(s * read[:, None], 0) * scale, has_v)
        out += heads * VALUE_DIM
    tl.store(places, s, mask=inside)


@launches(ops.gated_linear_attention)
def gated_linear_attention(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    heads: int,
    key_heads: int,
) -> Tensor:
    """Compute `ops.gated_linear_attention`."""
    r, w, k, v = (each.contiguous() for each in (r, w, k, v))
    key_dim, value_dim = state.shape[1] // heads, state.shape[2]
    sequences = find_sequences(starts, lengths, states, r)
    out = sequences.new_results(r, heads * value_dim)
    tile = state_tile(key_dim, value_dim)
    launch(
        gated_rows_kernel,
        state_grid(tile, value_dim, heads, sequences.every),
        *(r, w, k, v, state, sequences.every, out, heads, key_heads, key_dim**-0.5),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        **tile,
    )
    return out
