"""RWKV's ops: rows mixed with the ones before them, and a state that takes up keys and values.

What `ops.recurrent` says of states, sequences and their rows holds here too. A head's state is [dim, value_dim].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.arguments import plain, rows, vector
from sporelm.ops.elementwise import like_both
from sporelm.ops.op import op, require
from sporelm.ops.recurrent import WHOSE, check_sequences, head_pairs, sequences, stepwise
from sporelm.ops.spec import Spec, fixed, spec_of
from sporelm.tensor.dtype import F32

Vectors = NDArray[np.float32]
FASTEST = 0.6065306597126334  # exp(-1 / 2): RWKV-7: no channel decays by more than exp of minus this
LEAST_LENGTH = 1e-12  # by which a key is divided at least


def _mixed(x: Any, delta: Any, mixes: Any, more: Any = ()) -> tuple[Spec, ...]:
    wide = like_both(rows("x", x), delta)
    require(len(mixes) > 0, "mixes must be one vector or more")
    require(len(more) in (0, len(mixes)), f"{len(more)} further mixes for {len(mixes)} vectors")
    for mix in mixes:
        require(vector("mixes", mix).shape == wide.shape[1:], f"mixes {spec_of(mix)} must have a number a column")
    for given in more:
        require(rows("more", given) == wide, f"more {spec_of(given)} must be like x {wide}")
    return (wide,) * len(mixes)


@op(_mixed)
def mix_rows(x, delta, mixes, more=()):  # x, delta [tokens, width]; each of mixes [width], of more [tokens, width]
    """x + mix * delta for each of `mixes`; `more` has what each is at a token besides (RWKV-6)."""
    added = more or [np.float32(0)] * len(mixes)
    return tuple(x + (mix + given) * delta for mix, given in zip(mixes, added, strict=True))


def _between(x: Any, y: Any, gate: Any) -> Spec:
    wide = like_both(x, y)
    require(spec_of(gate) == wide, f"gate {spec_of(gate)} must be like x {wide}")
    return wide


@op(_between)
def blend(x, y, gate):  # x, y, gate [tokens, width]
    """x + (y - x) * sigmoid(gate)."""
    return x + (y - x) * _sigmoid(gate)


def _heads_of(given: Spec, bonus: Any, state: Any, values: Any) -> Spec:
    """The spec of what heads make, given rows of keys, a number for each of their channels, a state and values."""
    heads, dim = (fixed(extent) for extent in rows("bonus", bonus).shape)
    held = plain("state", state, F32, 3)
    require(given.shape[1] == heads * dim, f"r {given} must have {dim} columns for each of {heads} heads")
    require(held.shape[1] == heads * dim, f"state {held} must have {dim} rows for each of {heads} heads")
    made = Spec((given.shape[0], heads * fixed(held.shape[2])), F32)
    require(rows("v", values) == made, f"v {spec_of(values)} must be like what is made, {made}")
    return made


def _wkv7(
    r: Any,
    w: Any,
    k: Any,
    v: Any,
    a: Any,
    removed: Any,
    kept: Any,
    bonus: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> tuple[Spec, Spec]:
    given, _ = stepwise(r, state, starts, lengths, states)
    for name, value in (("w", w), ("k", k), ("a", a)):
        require(rows(name, value) == given, f"{name} {spec_of(value)} must be like r {given}")
    for name, value in (("removed", removed), ("kept", kept)):
        require(vector(name, value).shape == given.shape[1:], f"{name} {spec_of(value)} must have a number a column")
    made = _heads_of(given, bonus, state, v)
    return made, made


def _inside(r: Any, *args: Any) -> None:
    check_sequences(r, *args[-4:])


@op(_wkv7, updates=("state",), indices=_inside, host=WHOSE)
def wkv7(r, w, k, v, a, removed, kept, bonus, state, starts, lengths, states):
    """RWKV-7's generalized delta rule (Peng et al. 2025): what the state says, and what each row adds by itself; both
    float32 [tokens, heads * value_dim].

    r, w, k, a [tokens, heads * dim], v [tokens, heads * value_dim]; removed, kept [heads * dim], bonus [heads, dim];
    state [slots, heads * dim, value_dim]. Of each head, with A = sigmoid(a), u = k * removed brought to length one and
    K = k * (1 + (A - 1) * kept): S decays by exp(-e^-0.5 sigmoid(w)), a rate for each row of it; what it said of u
    before is taken off in the direction u * A, and K outer v is added. The first result is r S, the second
    (r * bonus . K) v.
    """
    heads, dim = bonus.shape
    parts = (each.reshape(len(r), heads, -1) for each in (r, w, k, v, a))
    r, w, k, v, a = parts
    rate, decay = _sigmoid(a), np.exp(np.float32(-FASTEST) * _sigmoid(w))
    unit = k * removed.reshape(heads, dim)
    length = np.sqrt(np.sum(unit.astype(np.float64) ** 2, axis=-1, keepdims=True))
    unit = (unit / np.maximum(length, LEAST_LENGTH)).astype(np.float32)
    key = k * (1 + (rate - 1) * kept.reshape(heads, dim))
    out = np.empty(v.shape, np.float32)
    for held, own in sequences(state, starts, lengths, states):
        s = held.reshape(heads, dim, -1)
        for row in own:
            known = np.einsum("hk,hkv->hv", unit[row], s)
            s *= decay[row, :, :, None]
            s += key[row][:, :, None] * v[row][:, None] - (unit[row] * rate[row])[:, :, None] * known[:, None]
            out[row] = np.einsum("hk,hkv->hv", r[row], s)
    alone = np.sum(r * key * bonus, axis=-1, keepdims=True) * v
    return out.reshape(len(r), -1), alone.reshape(len(r), -1)


def _wkv6(r: Any, w: Any, k: Any, v: Any, bonus: Any, state: Any, starts: Any, lengths: Any, states: Any) -> Spec:
    given, _ = stepwise(r, state, starts, lengths, states)
    for name, value in (("w", w), ("k", k)):
        require(rows(name, value) == given, f"{name} {spec_of(value)} must be like r {given}")
    return _heads_of(given, bonus, state, v)


@op(_wkv6, updates=("state",), indices=_inside, host=WHOSE)
def wkv6(r, w, k, v, bonus, state, starts, lengths, states):
    """RWKV-6's linear attention (Peng et al. 2024): float32 [tokens, heads * value_dim].

    r, w, k [tokens, heads * dim], v [tokens, heads * value_dim], bonus [heads, dim]; state [slots, heads * dim,
    value_dim]. Of each head: r (S + (bonus * k) outer v), then S decays by exp(-exp(w)), a rate for each row of it, and
    k outer v is added.
    """
    heads, dim = bonus.shape
    r, w, k, v = (each.reshape(len(r), heads, -1) for each in (r, w, k, v))
    with np.errstate(over="ignore"):
        decay = np.exp(-np.exp(w))
    out = np.empty(v.shape, np.float32)
    for held, own in sequences(state, starts, lengths, states):
        s = held.reshape(heads, dim, -1)
        for row in own:
            out[row] = np.einsum("hk,hkv->hv", r[row], s)
            s *= decay[row, :, :, None]
            s += k[row][:, :, None] * v[row][:, None]
    return (out + np.sum(r * bonus * k, axis=-1, keepdims=True) * v).reshape(len(r), -1)


def _grouped(
    r: Any, w: Any, k: Any, v: Any, state: Any, starts: Any, lengths: Any, states: Any, *, heads: int, key_heads: int
) -> Spec:
    given, held = stepwise(r, state, starts, lengths, states)
    require(0 < key_heads <= heads and heads % key_heads == 0, f"{heads} heads are no whole groups of {key_heads}")
    require(given.shape[1] == held.shape[1], f"state {held} must have a row for each column of r {given}")
    require(fixed(given.shape[1]) % heads == 0, f"r {given} must be {heads} whole heads")
    require(rows("w", w) == given, f"w {spec_of(w)} must be like r {given}")
    dim, value_dim = fixed(given.shape[1]) // heads, fixed(held.shape[2])
    for name, value, width in (("k", k, dim), ("v", v, value_dim)):
        wanted = Spec((given.shape[0], key_heads * width), F32)
        require(rows(name, value) == wanted, f"{name} {spec_of(value)} must be {key_heads} heads of {width} columns")
    return Spec((given.shape[0], heads * value_dim), F32)


def _grouped_inside(r: Any, *args: Any, **_: Any) -> None:
    check_sequences(r, *args[-4:])


@op(_grouped, updates=("state",), indices=_grouped_inside, host=WHOSE)
def gated_linear_attention(r, w, k, v, state, starts, lengths, states, *, heads, key_heads):
    """Linear attention whose keys count by what fades (QRWKV6; Yang et al. 2023): float32 [tokens, heads * value_dim].

    r, w [tokens, heads * dim]; k [tokens, key_heads * dim] and v [tokens, key_heads * value_dim], each for its group of
    heads; state [slots, heads * dim, value_dim]. Of each head, with d = exp(-exp(w)): S = d S + ((1 - d) k) outer v, a
    rate for each row of it, and r S / sqrt(dim).
    """
    dim = r.shape[1] // heads
    whose = head_pairs(heads, key_heads, "each")
    r, w = (each.reshape(len(r), heads, dim) for each in (r, w))
    k, v = (each.reshape(len(r), key_heads, -1)[:, whose] for each in (k, v))
    with np.errstate(over="ignore"):
        decay = np.exp(-np.exp(w))
    key, out = k * (1 - decay), np.empty((len(r), heads, state.shape[2]), np.float32)
    for held, own in sequences(state, starts, lengths, states):
        s = held.reshape(heads, dim, -1)
        for row in own:
            s *= decay[row, :, :, None]
            s += key[row][:, :, None] * v[row][:, None]
            out[row] = np.einsum("hk,hkv->hv", r[row], s)
    return (out * np.float32(dim**-0.5)).reshape(len(r), -1)


def _sigmoid(x: Vectors) -> Vectors:
    with np.errstate(over="ignore"):
        return np.reciprocal(1 + np.exp(-x))
