"""The gated delta rule: a program for each slice of columns of each head of each sequence.

Row by row, results do not depend on how a sequence is cut into steps. Prompts in bfloat16 whose heads have one decay go
through chunks of 64 rows on tensor cores: a chunk begins where the step's rows of its sequence begin, so cuts change
results by rounding errors. Batch-invariant steps go row by row.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import apply_activation
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
from sporelm.backends.cuda.state_chunks import (
    ADDED,
    KNOWN,
    LAST,
    NEW,
    READ,
    new_products,
    pass_chunks,
    product_size,
)

PRODUCT_WARPS = 8


@triton.jit
def log_decay_of(slowed, rate, min_log_decay, IS_BOUNDED: tl.constexpr):
    """Return the logarithm of a decay, given alpha + bias."""
    if IS_BOUNDED:
        return min_log_decay * apply_activation(-rate * slowed, "sigmoid")
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
        update = max_beta * apply_activation(share, "sigmoid") * (value - known)
        s += key[:, None] * update[None, :]
        store_narrow(out, read + tl.sum(query * key, 0) * update, has_v)
        out += heads * VALUE_DIM
    tl.store(places, s, mask=inside)


@triton.jit
def invert_triangle(lower, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the inverse of 1 + lower, which is zero on and above its diagonal: [ROWS, ROWS].

    Blocks on the diagonal are inverted by substitution, a row of all of them at a time. With D these inverses and M = D
    @ the rest of `lower`, the inverse is (1 - M + M^2 - M^3) D for four blocks.
    """
    tl.static_assert(ROWS == 4 * BLOCK)
    block, row = tl.arange(0, ROWS) // BLOCK, tl.arange(0, BLOCK)
    is_block = block[:, None] == block[None, :]
    is_same = tl.arange(0, 4)[:, None, None, None] == tl.arange(0, 4)[None, None, :, None]
    inner = tl.sum(tl.reshape(tl.where(is_block, lower, 0.0), (4, BLOCK, 4, BLOCK)), 2)
    inverse = tl.where((row[:, None] == row[None, :])[None, :, :], 1.0, tl.zeros((4, BLOCK, BLOCK), tl.float32))
    for number in range(1, BLOCK):
        is_row = (row == number)[None, :, None]
        factors = tl.sum(tl.where(is_row, inner, 0.0), 1)
        found = tl.sum(factors[:, :, None] * inverse, 1)
        inverse = tl.where(is_row, inverse - found[:, None, :], inverse)
    diagonal = tl.reshape(tl.where(is_same, inverse[:, :, None, :], 0.0), (ROWS, ROWS))
    outer = tl.where(is_block, 0.0, lower)
    step = tl.dot(diagonal, outer, input_precision="tf32")
    square = tl.dot(step, step, input_precision="tf32")
    total = square - step - tl.dot(square, step, input_precision="tf32")
    return diagonal + tl.dot(total, diagonal, input_precision="tf32")


@triton.jit(do_not_specialize=["tokens"])
def delta_products_kernel(
    queries, keys, alpha, beta, decay, bias, chunks, scores, inverse, factors,
    query_stride, key_stride, heads, key_heads, tokens, scale, max_beta, eps, min_log_decay,
    KEY_DIM: tl.constexpr, IS_EACH: tl.constexpr, IS_BOUNDED: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the products of a chunk's rows for a head. Lengths of keys and queries are divided out of the results."""
    _, _, _, _, first, count, _ = read_piece(chunks, tl.program_id(1))
    if count == 0:
        return
    head = tl.program_id(0)
    if IS_EACH:
        key_head = head // (heads // key_heads)
    else:
        key_head = head % key_heads
    k, row = tl.arange(0, K), tl.arange(0, ROWS)
    place = first + row
    is_row = row < count
    inside = is_row[:, None] & (k < KEY_DIM)[None, :]
    columns = key_head * KEY_DIM + k[None, :]
    share = tl.where(
        is_row, max_beta * apply_activation(load_wide(beta + place * heads + head, is_row), "sigmoid"), 0.0
    )
    slowed = load_wide(alpha + place * heads + head, is_row) + tl.load(bias + head)
    logs = tl.where(is_row, log_decay_of(slowed, tl.load(decay + head), min_log_decay, IS_BOUNDED), 0.0)
    sums, last = tl.cumsum(logs, 0), tl.sum(logs, 0)
    query = tl.load(queries + place[:, None] * query_stride + columns, mask=inside, other=0.0)
    key = tl.load(keys + place[:, None] * key_stride + columns, mask=inside, other=0.0)
    wide_query, wide_key = query.to(tl.float32), key.to(tl.float32)
    query_scale = scale / tl.sqrt_rn(tl.sum(wide_query * wide_query, 1) + eps)
    key_scale = 1 / tl.sqrt_rn(tl.sum(wide_key * wide_key, 1) + eps)
    head_tokens = head.to(tl.int64) * tokens
    factor_places = factors + head_tokens + place
    factor_stride = tokens.to(tl.int64) * heads
    faded_state = tl.exp(sums)
    tl.store(factor_places + READ * factor_stride, faded_state * query_scale, mask=is_row)
    tl.store(factor_places + NEW * factor_stride, share, mask=is_row)
    tl.store(factor_places + KNOWN * factor_stride, share * faded_state * key_scale, mask=is_row)
    tl.store(factor_places + ADDED * factor_stride, tl.exp(last - sums) * key_scale, mask=is_row)
    tl.store(factor_places + LAST * factor_stride, tl.exp(last) + sums * 0, mask=is_row)
    is_past = row[:, None] >= row[None, :]
    faded = tl.exp(tl.where(is_past, sums[:, None] - sums[None, :], float("-inf"))) * key_scale[None, :]
    product_places = (head_tokens + first) * ROWS + row[:, None] * ROWS + row[None, :]
    score = dot(query, tl.trans(key), tl.zeros((ROWS, ROWS), tl.float32)) * faded * query_scale[:, None]
    store_narrow(scores + product_places, score, is_row[:, None])
    known = dot(key, tl.trans(key), tl.zeros((ROWS, ROWS), tl.float32)) * faded * (share * key_scale)[:, None]
    known = tl.where(row[:, None] > row[None, :], known, 0.0)
    store_narrow(inverse + product_places, invert_triangle(known, ROWS, ROWS // 4), is_row[:, None])


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
    alpha, beta = alpha.contiguous(), beta.contiguous()
    has_row_decays = alpha.shape[1] > heads
    has_chunks = sequences.has_chunks(x) and not has_row_decays
    table = sequences.few if has_chunks else sequences.every
    tile = state_tile(key_dim, value_dim)
    launch(
        delta_rows_kernel,
        state_grid(tile, value_dim, heads, table),
        *(x, keys, values, alpha, beta, decay, bias, state, table, out),
        *(x.stride(0), keys.stride(0), values.stride(0), heads, key_heads),
        *(key_dim**-0.5, max_beta, eps, min_log_decay),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        HAS_ROW_DECAYS=has_row_decays,
        IS_EACH=order == "each",
        IS_BOUNDED=min_log_decay != 0,
        **tile,
    )
    if has_chunks:
        products = new_products(x, heads, is_delta=True)
        launch(
            delta_products_kernel,
            (heads, len(sequences.chunks)),
            *(x, keys, alpha, beta, decay, bias, sequences.chunks, *products),
            *(x.stride(0), keys.stride(0), heads, key_heads, x.shape[0]),
            *(key_dim**-0.5, max_beta, eps, min_log_decay),
            KEY_DIM=key_dim,
            IS_EACH=order == "each",
            IS_BOUNDED=min_log_decay != 0,
            K=product_size(key_dim),
            ROWS=CHUNK,
            num_warps=PRODUCT_WARPS,
        )
        pass_chunks(sequences, x, keys, values, products, state, out, heads, key_heads, order == "each")
    return out
