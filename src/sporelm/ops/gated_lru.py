"""Griffin's gated linear recurrent unit: each channel has one number of state, with a gated decay and a gated input.

The module docstring of `ops.recurrent_state` describes states, sequences and rows.
"""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import SEQUENCE_ARGUMENTS, check_sequences, check_state, each_sequence, softplus
from sporelm.ops.spec import Spec, require_fixed, spec_of

SHARPNESS = -8.0  # c of the paper's equation 4


def _gated_lru_spec(
    x: Any,
    recurrence_gate: Any,
    input_gate: Any,
    decay: Any,
    recurrence_bias: Any,
    input_bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Spec:
    given, held = check_state(x, state, starts, lengths, states)
    heads, width = require_fixed(held.shape[1]), require_fixed(held.shape[2])
    require(given.shape[1] == heads * width, f"state {held} must have a number for each column of x {given}")
    for name, value in (("recurrence_gate", recurrence_gate), ("input_gate", input_gate)):
        require(check_rows(name, value).shape == given.shape, f"{name} {spec_of(value)} must be like x {given}")
    for name, value in (("recurrence_bias", recurrence_bias), ("input_bias", input_bias)):
        require(check_rows(name, value).shape == (heads, width), f"{name} {spec_of(value)} must be {[heads, width]}")
    require(
        check_vector("decay", decay).shape == given.shape[1:],
        f"decay {spec_of(decay)} must have one element a column of x",
    )
    return given


def _check_indices(
    x: Any,
    recurrence_gate: Any,
    input_gate: Any,
    decay: Any,
    recurrence_bias: Any,
    input_bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_gated_lru_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def gated_lru(
    x, recurrence_gate, input_gate, decay, recurrence_bias, input_bias, state, starts, lengths, states
):  # x [tokens, width]
    """Apply RG-LRU (De et al. 2024, section 2.4): float32 [tokens, width].

    recurrence_gate, input_gate [tokens, width]; their sigmoids, after recurrence_bias and input_bias [heads, width /
    heads] are added, are r and i. With log a = -8 r softplus(decay), decay [width]: h = a h + sqrt(1 - a ** 2) (i x).
    At the first row of a sequence h = i x. state [slots, heads, width / heads] is h.
    """
    gate, kept = (
        1 / (1 + np.exp(-(each + bias.reshape(-1))))
        for each, bias in ((input_gate, input_bias), (recurrence_gate, recurrence_bias))
    )
    faded = np.float32(SHARPNESS) * softplus(decay) * kept
    a, gain, given, out = np.exp(faded), np.sqrt(1 - np.exp(2 * faded)), x * gate, np.empty_like(x)
    begun = starts[:-1][(np.diff(starts) == lengths) & (lengths > 0)]
    gain[begun] = 1  # no earlier row
    for held, own in each_sequence(state, starts, lengths, states):
        h = held.reshape(-1)
        for row in own:
            h[...] = a[row] * h + gain[row] * given[row]
            out[row] = h
    return out
