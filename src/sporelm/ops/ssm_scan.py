"""Mamba 2's state-space scan."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import (
    SEQUENCE_ARGUMENTS,
    check_sequences,
    check_state,
    each_sequence,
    head_pairs,
    softplus,
)
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32


def _ssm_scan_spec(
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
    given, held = check_state(x, state, starts, lengths, states)
    (tokens, _), heads = given.shape, require_fixed(check_vector("decay", decay).shape[0])
    require(check_rows("dt", dt).shape == (tokens, heads), f"dt {spec_of(dt)} must be {[tokens, heads]}")
    for name, value in (("skip", skip), ("bias", bias)):
        require(
            check_vector(name, value).shape == (heads,),
            f"{name} {spec_of(value)} must have one element a head: {heads}",
        )
    require(groups > 0 and heads % groups == 0, f"{heads} heads are not a multiple of {groups} groups")
    require(0 <= low <= high, f"time steps from {low} to {high} must be a range of positive numbers")
    rows_held, head_dim = require_fixed(held.shape[1]), require_fixed(held.shape[2])
    require(rows_held % heads == 0, f"state {held} must have as many rows for each of {heads} heads")
    width = heads * head_dim + 2 * groups * (rows_held // heads)
    require(given.shape[1] == width, f"x {given} must have {width} columns: values, what writes, what reads")
    return Spec((tokens, heads * head_dim), F32)


def _check_indices(
    x: Any, dt: Any, decay: Any, skip: Any, bias: Any, state: Any, starts: Any, lengths: Any, states: Any, **_: Any
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_ssm_scan_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def ssm_scan(x, dt, decay, skip, bias, state, starts, lengths, states, *, groups, low=0.0, high=np.inf):
    """Apply Mamba 2's scan (Dao, Gu 2024): float32 [tokens, heads * head_dim].

    x [tokens, heads * head_dim + 2 * groups * state_dim] has the values, and for each group of heads B and C. dt
    [tokens, heads]; decay, skip, bias [heads]. The time step d is softplus(dt + bias), limited to `low` .. `high`: S =
    exp(d * decay) * S + B outer (d * x), and y = C S + skip * x. state [slots, heads * state_dim, head_dim].
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
    for held, own in each_sequence(state, starts, lengths, states):
        s = held.reshape(heads, size, head_dim)
        for row in own:
            s *= kept[row, :, None, None]
            s += write[row][:, :, None] * (step[row, :, None] * values[row])[:, None]
            out[row] = np.einsum("hn,hnp->hp", read[row], s)
    return (out + skip[:, None] * values).reshape(len(x), -1)
