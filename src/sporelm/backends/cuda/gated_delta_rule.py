"""The gated delta rule: a program for each slice of columns of each head of each sequence."""

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
def log_decay_of(slowed, rate, min_log_decay, IS_BOUNDED: tl.constexpr):
    """Return the logarithm of a decay, given alpha + bias."""
    if IS_BOUNDED:
        return min_log_decay * tl.sigmoid(-rate * slowed)
    else:
        return rate * softplus(slowed)


@triton.jit
def delta_rows_kernel(
    queries, keys, values, alpha, beta, decay, bias, state, table, out,
    query_stride, key_stride, value_stride, heads, key_heads, scale, max_beta, eps, min_log_decay,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HAS_ROW_DECAYS: tl.constexpr, IS_EACH: tl.constexpr, IS_BOUNDED: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with V columns of a head's state: decay, correct, read."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    if IS_EACH:
        key_head = head // (heads // key_heads)
    else:
        key_head = head % key_heads
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    has_k, has_v = k < KEY_DIM, v < VALUE_DIM
    state_rows = (slot * heads + head) * KEY_DIM + k
    places = state + state_rows[:, None] * VALUE_DIM + v[None, :]
    inside = has_k[:, None] & has_v[None, :]
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    rate = tl.load(decay + head)
    if HAS_ROW_DECAYS:
        decays = head * KEY_DIM + k
        decay_stride, has_decay = heads * KEY_DIM, has_k
    else:
        decays = head
        decay_stride, has_decay = heads, rows > 0
    offset = load_wide(bias + decays, has_decay)
    queries += first * query_stride + key_head * KEY_DIM + k
    keys += first * key_stride + key_head * KEY_DIM + k
    values += first * value_stride + head * VALUE_DIM + v
    alpha += first * decay_stride + decays
    beta += first * heads + head
    out += first * heads * VALUE_DIM + head * VALUE_DIM + v
    # A row's numbers are loaded while the row before is computed.
    next_query, next_key = load_wide(queries, has_k), load_wide(keys, has_k)
    next_value, next_slowed = load_wide(values, has_v), load_wide(alpha, has_decay)
    next_share = load_wide(beta, rows > 0)
    for row in range(rows):
        query, key, value, slowed, share = next_query, next_key, next_value, next_slowed, next_share
        queries += query_stride
        keys += key_stride
        values += value_stride
        alpha += decay_stride
        beta += heads
        is_more = row + 1 < rows
        next_query, next_key = load_wide(queries, has_k & is_more), load_wide(keys, has_k & is_more)
        next_value, next_slowed = load_wide(values, has_v & is_more), load_wide(alpha, has_decay & is_more)
        next_share = load_wide(beta, is_more)
        query = query * (scale / tl.sqrt_rn(tl.sum(query * query, 0) + eps))
        key = key * (1 / tl.sqrt_rn(tl.sum(key * key, 0) + eps))
        kept = tl.exp(log_decay_of(slowed + offset, rate, min_log_decay, IS_BOUNDED))
        # (S decay + key u) query = (S decay) query + (key query) u: the state is read once.
        if HAS_ROW_DECAYS:
            s = s * kept[:, None]
        else:
            s = s * kept
        known = tl.sum(s * key[:, None], 0)
        read = tl.sum(s * query[:, None], 0)
        update = max_beta * tl.sigmoid(share) * (value - known)
        s += key[:, None] * update[None, :]
        store_narrow(out, read + tl.sum(query * key, 0) * update, has_v)
        out += heads * VALUE_DIM
    tl.store(places, s, mask=inside)


@launches(ops.gated_delta_rule)
def gated_delta_rule(
    x: Tensor,
    alpha: Tensor,
    beta: Tensor,
    decay: Tensor,
    bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    keys: Tensor | None = None,
    values: Tensor | None = None,
    *,
    key_heads: int,
    order: str,
    max_beta: float = 1.0,
    eps: float = 1e-6,
    min_log_decay: float = 0.0,
) -> Tensor:
    """Compute `ops.gated_delta_rule`."""
    heads, value_dim = len(decay), state.shape[2]
    key_dim = state.shape[1] // heads
    width = key_heads * key_dim
    x = x.contiguous()
    if keys is None or values is None:
        keys, values = x[:, width : 2 * width], x[:, 2 * width :]
    else:
        keys, values = keys.contiguous(), values.contiguous()
    sequences = find_sequences(starts, lengths, states, x)
    out = sequences.new_results(x, heads * value_dim)
    tile = state_tile(key_dim, value_dim)
    launch(
        delta_rows_kernel,
        state_grid(tile, value_dim, heads, sequences.every),
        *(x, keys, values, alpha.contiguous(), beta.contiguous(), decay, bias, state, sequences.every, out),
        *(x.stride(0), keys.stride(0), values.stride(0), heads, key_heads),
        *(key_dim**-0.5, max_beta, eps, min_log_decay),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        HAS_ROW_DECAYS=alpha.shape[1] > heads,
        IS_EACH=order == "each",
        IS_BOUNDED=min_log_decay != 0,
        **tile,
    )
    return out
