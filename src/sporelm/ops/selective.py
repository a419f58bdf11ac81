"""Mamba 1's selective scan: a state for each channel, which fades at rates of its own.

What `ops.recurrent` says of states, sequences and their rows holds here too.
"""

from typing import Any

import numpy as np

from sporelm.ops.arguments import plain, rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent import WHOSE, check_sequences, sequences, softplus, stepwise
from sporelm.ops.spec import Spec, spec_of
from sporelm.tensor.dtype import F32


def _selected(
    x: Any,
    dt: Any,
    write: Any,
    read: Any,
    decay: Any,
    skip: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Spec:
    given, held = stepwise(x, state, starts, lengths, states)
    tokens, channels = given.shape
    size = held.shape[1]
    require(held.shape[2] == channels, f"state {held} must have a column for each of x {given}")
    require(rows("dt", dt).shape == given.shape, f"dt {spec_of(dt)} must be {[tokens, channels]}")
    for name, value in (("write", write), ("read", read)):
        require(rows(name, value).shape == (tokens, size), f"{name} {spec_of(value)} must be {[tokens, size]}")
    rates = plain("decay", decay, F32, 2)
    require(rates.shape == (size, channels), f"decay {rates} must be {[size, channels]}")
    require(vector("skip", skip).shape == (channels,), f"skip {spec_of(skip)} must have one element a column of x")
    return given


def _selected_inside(
    x: Any,
    dt: Any,
    write: Any,
    read: Any,
    decay: Any,
    skip: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_selected, updates=("state",), indices=_selected_inside, host=WHOSE)
def selective_scan(x, dt, write, read, decay, skip, state, starts, lengths, states):  # x [tokens, channels]
    """Mamba's selective scan (Gu, Dao 2023): float32 [tokens, channels].

    dt [tokens, channels]; write, read [tokens, size], the same for all channels; decay [size, channels]; skip
    [channels]. A time step d is softplus(dt): S = exp(d * decay) * S + write outer (d * x), and y = read S + skip * x.
    state [slots, size, channels].
    """
    step, out = softplus(dt), np.empty_like(x)
    for held, own in sequences(state, starts, lengths, states):
        for row in own:
            held *= np.exp(step[row] * decay)
            held += write[row][:, None] * (step[row] * x[row])
            out[row] = read[row] @ held
    return out + skip * x
