"""Causal convolution of each channel over the rows of a sequence."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import SEQUENCE_ARGUMENTS, check_sequences, check_state, each_sequence
from sporelm.ops.spec import Spec, require_fixed, spec_of


def _causal_conv1d_spec(
    x: Any, weight: Any, bias: Any, state: Any, starts: Any, lengths: Any, states: Any, *, silu: bool = True
) -> Spec:
    given, held = check_state(x, state, starts, lengths, states)
    taps = check_rows("weight", weight)
    require(taps.shape[1] == given.shape[1], f"weight {taps} must have a column for each of x {given}")
    before = require_fixed(taps.shape[0]) - 1
    require(before > 0, f"weight {taps} must have two rows or more")
    want = (before, *given.shape[1:])
    require(held.shape[1:] == want, f"state {held} must keep {list(want)} of each sequence")
    if bias is not None:
        require(
            check_vector("bias", bias).shape == given.shape[1:], f"bias {spec_of(bias)} must have a number a column"
        )
    return given


def _check_indices(
    x: Any, weight: Any, bias: Any, state: Any, starts: Any, lengths: Any, states: Any, **_: Any
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_causal_conv1d_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def causal_conv1d(x, weight, bias, state, starts, lengths, states, *, silu=True):  # x [tokens, channels]
    """Convolve each channel with its own taps over the rows up to each, then apply silu: float32 [tokens, channels].

    weight [taps, channels], the last row for the current row; bias [channels] or None; state [slots, taps - 1,
    channels], the previous rows.
    """
    out = np.empty_like(x)
    for held, own in each_sequence(state, starts, lengths, states):
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
