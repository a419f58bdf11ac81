"""RWKV's states: a program for each slice of columns of each head of each sequence, row by row.

Results do not depend on how a sequence is cut into steps.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import apply_activation
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import find_sequences, read_sequence, state_grid, state_tile
from sporelm.ops.wkv import MAX_DECAY, MIN_LENGTH

_MIN_LOG_DECAY: tl.constexpr = tl.constexpr(-float(MAX_DECAY))
_MIN_LENGTH: tl.constexpr = tl.constexpr(float(MIN_LENGTH))
MAX_EXPONENT = tl.constexpr(88.0)  # whose exponential is in range


@triton.jit
def wkv7_rows_kernel(
    r, w, keys, values, a, k_k, k_a, bonus, state, table, out, alone, heads,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with V columns of a head's state: decay, correct, add, read."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    has_k, has_v = k < KEY_DIM, v < VALUE_DIM
    places = state + ((slot * heads + head) * KEY_DIM + k)[:, None] * VALUE_DIM + v[None, :]
    inside = has_k[:, None] & has_v[None, :]
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    unit_scale, key_share = load_wide(k_k + head * KEY_DIM + k, has_k), load_wide(k_a + head * KEY_DIM + k, has_k)
    own_share = load_wide(bonus + head * KEY_DIM + k, has_k)
    place = (first * heads + head) * KEY_DIM + k
    value_place = (first * heads + head) * VALUE_DIM + v
    # A row's numbers are loaded while the row before is computed.
    next_read, next_decay = load_wide(r + place, has_k), load_wide(w + place, has_k)
    next_key = load_wide(keys + place, has_k)
    next_rate, next_value = load_wide(a + place, has_k), load_wide(values + value_place, has_v)
    for row in range(rows):
        read, given, value = next_read, next_key, next_value
        kept, rate = (
            tl.exp(apply_activation(next_decay, "sigmoid") * _MIN_LOG_DECAY),
            apply_activation(next_rate, "sigmoid"),
        )
        row_place = value_place
        place += heads * KEY_DIM
        value_place += heads * VALUE_DIM
        is_more = row + 1 < rows
        has_next = has_k & is_more
        next_read, next_decay = load_wide(r + place, has_next), load_wide(w + place, has_next)
        next_key = load_wide(keys + place, has_next)
        next_rate, next_value = load_wide(a + place, has_next), load_wide(values + value_place, has_v & is_more)
        unit = given * unit_scale
        unit = unit / tl.maximum(tl.sqrt_rn(tl.sum(unit * unit, 0)), _MIN_LENGTH)
        key = given * (1 + (rate - 1) * key_share)
        known = tl.sum(s * unit[:, None], 0)
        s = s * kept[:, None] + key[:, None] * value[None, :] - (unit * rate)[:, None] * known[None, :]
        store_narrow(out + row_place, tl.sum(s * read[:, None], 0), has_v)
        store_narrow(alone + row_place, tl.sum(read * key * own_share, 0) * value, has_v)
    tl.store(places, s, mask=inside)


@triton.jit
def wkv6_rows_kernel(
    r, w, keys, values, bonus, state, table, out, heads,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with V columns of a head's state: read, decay, add."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    has_k, has_v = k < KEY_DIM, v < VALUE_DIM
    places = state + ((slot * heads + head) * KEY_DIM + k)[:, None] * VALUE_DIM + v[None, :]
    inside = has_k[:, None] & has_v[None, :]
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    own_share = load_wide(bonus + head * KEY_DIM + k, has_k)
    place = (first * heads + head) * KEY_DIM + k
    value_place = (first * heads + head) * VALUE_DIM + v
    # A row's numbers are loaded while the row before is computed.
    next_read, next_decay = load_wide(r + place, has_k), load_wide(w + place, has_k)
    next_key = load_wide(keys + place, has_k)
    next_value = load_wide(values + value_place, has_v)
    for row in range(rows):
        read, key, value = next_read, next_key, next_value
        kept = tl.exp(-tl.exp(tl.minimum(next_decay, MAX_EXPONENT)))
        row_place = value_place
        place += heads * KEY_DIM
        value_place += heads * VALUE_DIM
        is_more = row + 1 < rows
        has_next = has_k & is_more
        next_read, next_decay = load_wide(r + place, has_next), load_wide(w + place, has_next)
        next_key = load_wide(keys + place, has_next)
        next_value = load_wide(values + value_place, has_v & is_more)
        found = tl.sum(s * read[:, None], 0) + tl.sum(read * own_share * key, 0) * value
        store_narrow(out + row_place, found, has_v)
        s = s * kept[:, None] + key[:, None] * value[None, :]
    tl.store(places, s, mask=inside)


@launches(ops.wkv7)
def wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    k_k: Tensor,
    k_a: Tensor,
    bonus: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> tuple[Tensor, Tensor]:
    """Compute `ops.wkv7`."""
    r, w, k, v, a, bonus = (each.contiguous() for each in (r, w, k, v, a, bonus))
    (heads, dim), value_dim = bonus.shape, state.shape[2]
    sequences = find_sequences(starts, lengths, states, r)
    out, alone = (sequences.new_results(r, heads * value_dim) for _ in range(2))
    tile = state_tile(dim, value_dim)
    launch(
        wkv7_rows_kernel,
        state_grid(tile, value_dim, heads, sequences.every),
        *(r, w, k, v, a, k_k, k_a, bonus, state, sequences.every, out, alone, heads),
        KEY_DIM=dim,
        VALUE_DIM=value_dim,
        **tile,
    )
    return out, alone


@launches(ops.wkv6)
def wkv6(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, bonus: Tensor, state: Tensor, starts: Any, lengths: Any, states: Any
) -> Tensor:
    """Compute `ops.wkv6`."""
    r, w, k, v, bonus = (each.contiguous() for each in (r, w, k, v, bonus))
    (heads, dim), value_dim = bonus.shape, state.shape[2]
    sequences = find_sequences(starts, lengths, states, r)
    out = sequences.new_results(r, heads * value_dim)
    tile = state_tile(dim, value_dim)
    launch(
        wkv6_rows_kernel,
        state_grid(tile, value_dim, heads, sequences.every),
        *(r, w, k, v, bonus, state, sequences.every, out, heads),
        KEY_DIM=dim,
        VALUE_DIM=value_dim,
        **tile,
    )
    return out
