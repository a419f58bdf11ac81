"""Blocks that carry a state from row to row: causal convolution, gated delta rule, selective state-space scan.

A state is float32 [slots, ...]; `states` says which slot each sequence of a step has, and the op leaves there what the
sequence's next step goes on from. Several sequences share a step: `starts` says which rows are whose. A sequence whose
rows are all that it has (`lengths`) begins here: it starts from zeros, whatever its slot holds. Rows are taken one
after the other in one order, however a sequence is cut into steps.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError
from sporelm.ops.arguments import ints, plain, rows, vector, within
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed, spec_of
from sporelm.tensor.dtype import F32

Vectors = NDArray[np.float32]
WHOSE = ("starts", "lengths", "states")  # arguments that say how much there is to do, and for whom


def stepwise(x: Any, state: Any, starts: Any, lengths: Any, states: Any) -> tuple[Spec, Spec]:
    """The specs of x, float32 [tokens, width], and of a state, [slots, rows, width], given the arguments that say whose
    rows are whose. Raises OpError for others."""
    given, held = rows("x", x), plain("state", state, F32, 3)
    ints("starts", starts)
    counts, slots = ints("lengths", lengths), ints("states", states)
    require(counts.shape == slots.shape, f"states {slots} must have one element an element of lengths {counts}")
    return given, held


def check_sequences(x: Any, state: Any, starts: Any, lengths: Any, states: Any) -> None:
    """Raise OpError for rows outside x, more rows than positions, slots outside the state, or one that two share."""
    first, held, slots = starts.numpy(), lengths.numpy(), states.numpy()
    counts = np.diff(first.astype(np.int64))
    ordered = len(first) == len(held) + 1 and first[0] == 0 and first[-1] == x.shape[0] and (counts >= 0).all()
    wanted = f"rise from 0 to the {x.shape[0]} rows of x in {len(held) + 1} elements"
    require(bool(ordered), f"starts {first.tolist()[:8]} must {wanted}")
    for index in np.flatnonzero(held < counts):
        raise OpError(f"lengths[{index}] is less than the sequence's rows in this step")
    within("states", slots, 0, state.shape[0])
    require(len({*slots.tolist()}) == len(slots), f"states {slots.tolist()[:8]} must be a slot of its own for each")


def sequences(state: Vectors, starts: Any, lengths: Any, states: Any) -> Iterator[tuple[Vectors, range]]:
    """Each sequence that has rows: its state, a view, zeroed where it begins, and its rows' numbers."""
    for number, slot in enumerate(states):
        own = range(int(starts[number]), int(starts[number + 1]))
        if own:
            if lengths[number] == len(own):
                state[slot] = 0
            yield state[slot], own


def _convolved(
    x: Any, weight: Any, bias: Any, state: Any, starts: Any, lengths: Any, states: Any, *, silu: bool = True
) -> Spec:
    given, held = stepwise(x, state, starts, lengths, states)
    taps = rows("weight", weight)
    require(taps.shape[1] == given.shape[1], f"weight {taps} must have a column for each of x {given}")
    before = fixed(taps.shape[0]) - 1
    require(before > 0, f"weight {taps} must have two rows or more")
    want = (before, *given.shape[1:])
    require(held.shape[1:] == want, f"state {held} must keep {list(want)} of each sequence")
    if bias is not None:
        require(vector("bias", bias).shape == given.shape[1:], f"bias {spec_of(bias)} must have a number a column")
    return given


def _conv_inside(x: Any, weight: Any, bias: Any, state: Any, starts: Any, lengths: Any, states: Any, **_: Any) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_convolved, updates=("state",), indices=_conv_inside, host=WHOSE)
def causal_conv1d(x, weight, bias, state, starts, lengths, states, *, silu=True):  # x [tokens, channels]
    """Each channel convolved with its own taps over the rows up to each, then silu: float32 [tokens, channels].

    weight [taps, channels], the last row for the row itself; bias [channels] or None; state [slots, taps - 1,
    channels], the rows before.
    """
    out = np.empty_like(x)
    for held, own in sequences(state, starts, lengths, states):
        window = np.concatenate([held, x[own.start : own.stop]])
        total = weight[0] * window[: len(own)]
        for tap in range(1, len(weight)):
            total = total + weight[tap] * window[tap : tap + len(own)]
        out[own.start : own.stop] = total if bias is None else total + bias
        held[...] = window[len(own) :]
    if not silu:
        return out
    with np.errstate(over="ignore"):
        return out / (1 + np.exp(-out))


def softplus(x: Vectors) -> Vectors:
    """log(1 + exp(x))."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def head_pairs(heads: int, shared: int, order: str) -> NDArray[np.int64]:
    """Which of the `shared` heads each head goes with: "each" is repeated for its neighbours, or "all" of them are."""
    number = np.arange(heads)
    return number // (heads // shared) if order == "each" else number % shared


def _delta(
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
    most: float = 1.0,
    eps: float = 1e-6,
    least: float = 0.0,
) -> Spec:
    given, held = stepwise(x, state, starts, lengths, states)
    (tokens, _), heads = given.shape, fixed(vector("decay", decay).shape[0])
    rows_held, value_dim = fixed(held.shape[1]), fixed(held.shape[2])
    require(rows_held % heads == 0, f"state {held} must have as many rows for each of {heads} heads")
    require(order in ("each", "all"), f"order {order!r} must be 'each' or 'all'")
    require(key_heads > 0 and heads % key_heads == 0, f"{heads} heads are no whole groups of {key_heads} key heads")
    require(most > 0, f"most {most} must be above 0")
    require(least <= 0, f"least {least} must be below 0, or 0 for decays without a bound")
    decays = fixed(rows("alpha", alpha).shape[1])
    known = f"{heads} columns, or one for each of {rows_held} rows of a state"
    require(decays in (heads, rows_held), f"alpha {spec_of(alpha)} must have {known}")
    for name, value, width in (("alpha", alpha, decays), ("beta", beta, heads)):
        require(rows(name, value).shape == (tokens, width), f"{name} {spec_of(value)} must be {[tokens, width]}")
    require(vector("bias", bias).shape == (decays,), f"bias {spec_of(bias)} must have one element a column of alpha")
    require((keys is None) == (values is None), "keys and values must be given together, or neither")
    queries = key_heads * (rows_held // heads)
    if keys is None:
        width = 2 * queries + heads * value_dim
        require(given.shape[1] == width, f"x {given} must have {width} columns: queries, keys, values")
        return Spec((tokens, heads * value_dim), F32)
    for name, value, width in (("x", x, queries), ("keys", keys, queries), ("values", values, heads * value_dim)):
        require(rows(name, value).shape == (tokens, width), f"{name} {spec_of(value)} must be {[tokens, width]}")
    return Spec((tokens, heads * value_dim), F32)


def _delta_inside(
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


@op(_delta, updates=("state",), indices=_delta_inside, host=WHOSE)
def gated_delta_rule(
    x, alpha, beta, decay, bias, state, starts, lengths, states, keys=None, values=None,
    *, key_heads, order, most=1.0, eps=1e-6, least=0.0,
):  # fmt: skip
    """The gated delta rule (Yang, Kautz, Hatamizadeh 2024): float32 [tokens, heads * value_dim].

    x [tokens, 2 * key_heads * key_dim + heads * value_dim] has queries, keys and values; or queries alone, where keys
    [tokens, key_heads * key_dim] and values [tokens, heads * value_dim] are given. Queries and keys are divided by
    their length, queries by sqrt(key_dim) too. `order` says which key head a head has (`head_pairs`).
    alpha [tokens, heads], bias [heads]: S decays by exp(decay * softplus(alpha + bias)); or they have heads * key_dim
    columns, and each row of S, a channel of the keys, decays by itself (Kimi Team 2025, "Kimi Linear"). With `least`
    below 0, S decays by exp(least * sigmoid(-decay * (alpha + bias))), never by more than exp(least) (Ling 3). beta
    [tokens, heads], decay [heads]: what S says of a key moves towards the value by most * sigmoid(beta). state [slots,
    heads * key_dim, value_dim].
    """
    heads, value_dim = len(decay), state.shape[2]
    key_dim = state.shape[1] // heads
    parts = np.split(x, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1) if keys is None else (x, keys, values)
    whose = head_pairs(heads, key_heads, order)
    q, k = (_unit(part.reshape(len(x), key_heads, key_dim), eps)[:, whose] for part in parts[:2])
    q, v = q * np.float32(key_dim**-0.5), parts[2].reshape(len(x), heads, value_dim)
    slowed = (alpha + bias).reshape(len(x), heads, -1)
    with np.errstate(over="ignore"):
        bounded = np.float32(least) / (1 + np.exp(decay[:, None] * slowed))
        kept = np.exp(bounded if least else decay[:, None] * softplus(slowed))
        share = np.float32(most) / (1 + np.exp(-beta))
    out = np.empty((len(x), heads, value_dim), np.float32)
    for held, own in sequences(state, starts, lengths, states):
        s = held.reshape(heads, key_dim, value_dim)
        for row in own:
            s *= kept[row, :, :, None]
            known = np.einsum("hk,hkv->hv", k[row], s)
            s += k[row][:, :, None] * (share[row, :, None] * (v[row] - known))[:, None]
            out[row] = np.einsum("hk,hkv->hv", q[row], s)
    return out.reshape(len(x), -1)


def _unit(x: Vectors, eps: float) -> Vectors:
    length = np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=-1, keepdims=True) + eps)
    return (x / length).astype(np.float32)


def _scanned(
    x: Any,
    dt: Any,
    decay: Any,
    skip: Any,
    bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    groups: int,
    low: float = 0.0,
    high: float = np.inf,
) -> Spec:
    given, held = stepwise(x, state, starts, lengths, states)
    (tokens, _), heads = given.shape, fixed(vector("decay", decay).shape[0])
    require(rows("dt", dt).shape == (tokens, heads), f"dt {spec_of(dt)} must be {[tokens, heads]}")
    for name, value in (("skip", skip), ("bias", bias)):
        require(vector(name, value).shape == (heads,), f"{name} {spec_of(value)} must have one element a head: {heads}")
    require(groups > 0 and heads % groups == 0, f"{heads} heads are no whole groups: {groups}")
    require(0 <= low <= high, f"time steps from {low} to {high} must be a range of positive numbers")
    rows_held, head_dim = fixed(held.shape[1]), fixed(held.shape[2])
    require(rows_held % heads == 0, f"state {held} must have as many rows for each of {heads} heads")
    width = heads * head_dim + 2 * groups * (rows_held // heads)
    require(given.shape[1] == width, f"x {given} must have {width} columns: values, what writes, what reads")
    return Spec((tokens, heads * head_dim), F32)


def _scan_inside(
    x: Any, dt: Any, decay: Any, skip: Any, bias: Any, state: Any, starts: Any, lengths: Any, states: Any, **_: Any
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_scanned, updates=("state",), indices=_scan_inside, host=WHOSE)
def ssm_scan(x, dt, decay, skip, bias, state, starts, lengths, states, *, groups, low=0.0, high=np.inf):
    """Mamba 2's selective scan (Dao, Gu 2024): float32 [tokens, heads * head_dim].

    x [tokens, heads * head_dim + 2 * groups * state_dim] has values, and for each group of heads B, which writes, and
    C, which reads. dt [tokens, heads]; decay, skip, bias [heads]. A time step d is softplus(dt + bias) between `low`
    and `high`: S = exp(d * decay) * S + B outer (d * x), and y = C S + skip * x. state [slots, heads * state_dim,
    head_dim].
    """
    heads, head_dim = len(decay), state.shape[2]
    size = state.shape[1] // heads
    inner = heads * head_dim
    values = x[:, :inner].reshape(len(x), heads, head_dim)
    whose = head_pairs(heads, groups, "each")
    write, read = x[:, inner:].reshape(len(x), 2, groups, size).transpose(1, 0, 2, 3)[:, :, whose]
    step = np.clip(softplus(dt + bias), np.float32(low), np.float32(high))
    kept = np.exp(step * decay)
    out = np.empty(values.shape, np.float32)
    for held, own in sequences(state, starts, lengths, states):
        s = held.reshape(heads, size, head_dim)
        for row in own:
            s *= kept[row, :, None, None]
            s += write[row][:, :, None] * (step[row, :, None] * values[row])[:, None]
            out[row] = np.einsum("hn,hnp->hp", read[row], s)
    return (out + skip[:, None] * values).reshape(len(x), -1)
