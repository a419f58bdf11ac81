"""Mamba 1's selective scan: each channel has a state of a few numbers, each with its own decay rate.

The module docstring of `ops.recurrent_state` describes states, sequences and rows.
"""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_argument, check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import SEQUENCE_ARGUMENTS, check_sequences, check_state, each_sequence, softplus
from sporelm.ops.spec import Spec, spec_of
from sporelm.tensor.dtype import F32


def _selective_scan_spec(
    x: Any,
    dt: Any,
    b: Any,
    c: Any,
    decay: Any,
    skip: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Spec:
    given, held = check_state(x, state, starts, lengths, states)
    tokens, channels = given.shape
    size = held.shape[1]
    require(held.shape[2] == channels, f"state {held} must have a column for each of x {given}")
    require(check_rows("dt", dt).shape == given.shape, f"dt {spec_of(dt)} must be {[tokens, channels]}")
    for name, value in (("b", b), ("c", c)):
        require(check_rows(name, value).shape == (tokens, size), f"{name} {spec_of(value)} must be {[tokens, size]}")
    rates = check_argument("decay", decay, F32, 2)
    require(rates.shape == (size, channels), f"decay {rates} must be {[size, channels]}")
    require(
        check_vector("skip", skip).shape == (channels,), f"skip {spec_of(skip)} must have one element a column of x"
    )
    return given


def _check_indices(
    x: Any,
    dt: Any,
    b: Any,
    c: Any,
    decay: Any,
    skip: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_selective_scan_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def selective_scan(x, dt, b, c, decay, skip, state, starts, lengths, states):  # x [tokens, channels]
    """Apply Mamba's selective scan (Gu, Dao 2023): float32 [tokens, channels].

    dt [tokens, channels]; b, c [tokens, size], the same for all channels; decay [size, channels]; skip [channels]. The
    time step d is softplus(dt): S = exp(d * decay) * S + b outer (d * x), and y = c S + skip * x. state [slots, size,
    channels].
    """
    step, out = softplus(dt), np.empty_like(x)
    for held, own in each_sequence(state, starts, lengths, states):
        for row in own:
            held *= np.exp(step[row] * decay)
            held += b[row][:, None] * (step[row] * x[row])
            out[row] = c[row] @ held
    return out + skip * x
