"""RWKV's recurrent states.

The module docstring of `ops.recurrent_state` describes states, sequences and rows. A head's state is [dim, value_dim].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.argument_checks import check_argument, check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import SEQUENCE_ARGUMENTS, check_sequences, check_state, each_sequence
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32

Vectors = NDArray[np.float32]


MAX_DECAY = 0.6065306597126334  # exp(-1 / 2); RWKV-7: a channel decays by exp(-MAX_DECAY) at most


MIN_LENGTH = 1e-12  # lower limit of a key's norm


def _head_results_spec(given: Spec, bonus: Any, state: Any, values: Any) -> Spec:
    """Return the result spec of heads, given a spec of keys, a number per channel (bonus), the state and the values."""
    heads, dim = (require_fixed(extent) for extent in check_rows("bonus", bonus).shape)
    held = check_argument("state", state, F32, 3)
    require(given.shape[1] == heads * dim, f"r {given} must have {dim} columns for each of {heads} heads")
    require(held.shape[1] == heads * dim, f"state {held} must have {dim} rows for each of {heads} heads")
    made = Spec((given.shape[0], heads * require_fixed(held.shape[2])), F32)
    require(check_rows("v", values) == made, f"v {spec_of(values)} must be like what is made, {made}")
    return made


def _wkv7_spec(
    r: Any,
    w: Any,
    k: Any,
    v: Any,
    a: Any,
    k_k: Any,
    k_a: Any,
    bonus: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> tuple[Spec, Spec]:
    given, _ = check_state(r, state, starts, lengths, states)
    for name, value in (("w", w), ("k", k), ("a", a)):
        require(check_rows(name, value) == given, f"{name} {spec_of(value)} must be like r {given}")
    for name, value in (("k_k", k_k), ("k_a", k_a)):
        require(
            check_vector(name, value).shape == given.shape[1:], f"{name} {spec_of(value)} must have a number a column"
        )
    made = _head_results_spec(given, bonus, state, v)
    return made, made


def _check_indices(r: Any, *args: Any) -> None:
    check_sequences(r, *args[-4:])


@op(_wkv7_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def wkv7(r, w, k, v, a, k_k, k_a, bonus, state, starts, lengths, states):
    """Apply RWKV-7's generalized delta rule (Peng et al. 2025).

    Returns the state's output, and each row's own contribution, both float32 [tokens, heads * value_dim]. r, w, k, a
    [tokens, heads * dim], v [tokens, heads * value_dim]; k_k, k_a [heads * dim], bonus [heads, dim]; state [slots,
    heads * dim, value_dim].

    Per head, with A = sigmoid(a), u = k * k_k divided by its norm, and K = k * (1 + (A - 1) * k_a): each row of S
    decays by exp(-e^-0.5 sigmoid(w)); the previous output for u is subtracted in the direction u * A, and K outer v is
    added. The first result is r S, the second (r * bonus . K) v.
    """
    heads, dim = bonus.shape
    parts = (each.reshape(len(r), heads, -1) for each in (r, w, k, v, a))
    r, w, k, v, a = parts
    rate, decay = _sigmoid(a), np.exp(np.float32(-MAX_DECAY) * _sigmoid(w))
    unit = k * k_k.reshape(heads, dim)
    length = np.sqrt(np.sum(unit.astype(np.float64) ** 2, axis=-1, keepdims=True))
    unit = (unit / np.maximum(length, MIN_LENGTH)).astype(np.float32)
    key = k * (1 + (rate - 1) * k_a.reshape(heads, dim))
    out = np.empty(v.shape, np.float32)
    for held, own in each_sequence(state, starts, lengths, states):
        s = held.reshape(heads, dim, -1)
        for row in own:
            known = np.einsum("hk,hkv->hv", unit[row], s)
            s *= decay[row, :, :, None]
            s += key[row][:, :, None] * v[row][:, None] - (unit[row] * rate[row])[:, :, None] * known[:, None]
            out[row] = np.einsum("hk,hkv->hv", r[row], s)
    alone = np.sum(r * key * bonus, axis=-1, keepdims=True) * v
    return out.reshape(len(r), -1), alone.reshape(len(r), -1)


def _wkv6_spec(r: Any, w: Any, k: Any, v: Any, bonus: Any, state: Any, starts: Any, lengths: Any, states: Any) -> Spec:
    given, _ = check_state(r, state, starts, lengths, states)
    for name, value in (("w", w), ("k", k)):
        require(check_rows(name, value) == given, f"{name} {spec_of(value)} must be like r {given}")
    return _head_results_spec(given, bonus, state, v)


@op(_wkv6_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def wkv6(r, w, k, v, bonus, state, starts, lengths, states):
    """Apply RWKV-6's linear attention (Peng et al. 2024): float32 [tokens, heads * value_dim].

    r, w, k [tokens, heads * dim], v [tokens, heads * value_dim], bonus [heads, dim]; state [slots, heads * dim,
    value_dim]. Per head: the output is r (S + (bonus * k) outer v); then each row of S decays by exp(-exp(w)), and k
    outer v is added.
    """
    heads, dim = bonus.shape
    r, w, k, v = (each.reshape(len(r), heads, -1) for each in (r, w, k, v))
    with np.errstate(over="ignore"):
        decay = np.exp(-np.exp(w))
    out = np.empty(v.shape, np.float32)
    for held, own in each_sequence(state, starts, lengths, states):
        s = held.reshape(heads, dim, -1)
        for row in own:
            out[row] = np.einsum("hk,hkv->hv", r[row], s)
            s *= decay[row, :, :, None]
            s += k[row][:, :, None] * v[row][:, None]
    return (out + np.sum(r * bonus * k, axis=-1, keepdims=True) * v).reshape(len(r), -1)


def _sigmoid(x: Vectors) -> Vectors:
    with np.errstate(over="ignore"):
        return np.reciprocal(1 + np.exp(-x))
