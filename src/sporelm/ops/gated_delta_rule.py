"""The gated delta rule: a linear-attention state that decays and is corrected by each key."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import (
    SEQUENCE_ARGUMENTS,
    Vectors,
    check_sequences,
    check_state,
    each_sequence,
    head_pairs,
    softplus,
)
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32


def _gated_delta_rule_spec(
    x: Any,
    alpha: Any,
    beta: Any,
    decay: Any,
    bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
    keys: Any = None,
    values: Any = None,
    *,
    key_heads: int,
    order: str,
    max_beta: float = 1.0,
    eps: float = 1e-6,
    min_log_decay: float = 0.0,
) -> Spec:
    given, held = check_state(x, state, starts, lengths, states)
    (tokens, _), heads = given.shape, require_fixed(check_vector("decay", decay).shape[0])
    rows_held, value_dim = require_fixed(held.shape[1]), require_fixed(held.shape[2])
    require(rows_held % heads == 0, f"state {held} must have as many rows for each of {heads} heads")
    require(order in ("each", "all"), f"order {order!r} must be 'each' or 'all'")
    require(key_heads > 0 and heads % key_heads == 0, f"{heads} heads are not a multiple of {key_heads} key heads")
    require(max_beta > 0, f"max_beta {max_beta} must be above 0")
    require(min_log_decay <= 0, f"min_log_decay {min_log_decay} must be below 0, or 0 for decays without a bound")
    decays = require_fixed(check_rows("alpha", alpha).shape[1])
    known = f"{heads} columns, or one for each of {rows_held} rows of a state"
    require(decays in (heads, rows_held), f"alpha {spec_of(alpha)} must have {known}")
    for name, value, width in (("alpha", alpha, decays), ("beta", beta, heads)):
        require(check_rows(name, value).shape == (tokens, width), f"{name} {spec_of(value)} must be {[tokens, width]}")
    require(
        check_vector("bias", bias).shape == (decays,), f"bias {spec_of(bias)} must have one element a column of alpha"
    )
    require((keys is None) == (values is None), "keys and values must be given together, or neither")
    queries = key_heads * (rows_held // heads)
    if keys is None:
        width = 2 * queries + heads * value_dim
        require(given.shape[1] == width, f"x {given} must have {width} columns: queries, keys, values")
        return Spec((tokens, heads * value_dim), F32)
    for name, value, width in (("x", x, queries), ("keys", keys, queries), ("values", values, heads * value_dim)):
        require(check_rows(name, value).shape == (tokens, width), f"{name} {spec_of(value)} must be {[tokens, width]}")
    return Spec((tokens, heads * value_dim), F32)


def _check_indices(
    x: Any,
    alpha: Any,
    beta: Any,
    decay: Any,
    bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
    *more: Any,
    **options: Any,
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_gated_delta_rule_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def gated_delta_rule(
    x, alpha, beta, decay, bias, state, starts, lengths, states, keys=None, values=None,
    *, key_heads, order, max_beta=1.0, eps=1e-6, min_log_decay=0.0,
):  # fmt: skip
    """Apply the gated delta rule (Yang, Kautz, Hatamizadeh 2024): float32 [tokens, heads * value_dim].

    x [tokens, 2 * key_heads * key_dim + heads * value_dim] has queries, keys and values; or queries alone, if keys
    [tokens, key_heads * key_dim] and values [tokens, heads * value_dim] are given. Queries and keys are divided by
    their norm, queries also by sqrt(key_dim). `order` maps heads to key heads (`head_pairs`).

    alpha [tokens, heads], bias [heads]: S decays by exp(decay * softplus(alpha + bias)). With heads * key_dim columns,
    each row of S, a channel of the keys, has its own decay (Kimi Team 2025, "Kimi Linear"). With `min_log_decay` below
    0, S decays by exp(min_log_decay * sigmoid(-decay * (alpha + bias))) (Ling 3). beta [tokens, heads], decay [heads]:
    the value that S holds for a key moves towards the new value by max_beta * sigmoid(beta). state [slots, heads *
    key_dim, value_dim].
    """
    heads, value_dim = len(decay), state.shape[2]
    key_dim = state.shape[1] // heads
    parts = np.split(x, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1) if keys is None else (x, keys, values)
    whose = head_pairs(heads, key_heads, order)
    q, k = (_normalize(part.reshape(len(x), key_heads, key_dim), eps)[:, whose] for part in parts[:2])
    q, v = q * np.float32(key_dim**-0.5), parts[2].reshape(len(x), heads, value_dim)
    slowed = (alpha + bias).reshape(len(x), heads, -1)
    with np.errstate(over="ignore"):
        bounded = np.float32(min_log_decay) / (1 + np.exp(decay[:, None] * slowed))
        kept = np.exp(bounded if min_log_decay else decay[:, None] * softplus(slowed))
        share = np.float32(max_beta) / (1 + np.exp(-beta))
    out = np.empty((len(x), heads, value_dim), np.float32)
    for held, own in each_sequence(state, starts, lengths, states):
        s = held.reshape(heads, key_dim, value_dim)
        for row in own:
            s *= kept[row, :, :, None]
            known = np.einsum("hk,hkv->hv", k[row], s)
            s += k[row][:, :, None] * (share[row, :, None] * (v[row] - known))[:, None]
            out[row] = np.einsum("hk,hkv->hv", q[row], s)
    return out.reshape(len(x), -1)


def _normalize(x: Vectors, eps: float) -> Vectors:
    length = np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=-1, keepdims=True) + eps)
    return (x / length).astype(np.float32)
