"""Griffin's gated linear recurrent unit: a number for each channel fades as each row says, and takes it up.

What `ops.recurrent` says of states, sequences and their rows holds here too.
"""

from typing import Any

import numpy as np

from sporelm.ops.arguments import rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent import WHOSE, check_sequences, sequences, softplus, stepwise
from sporelm.ops.spec import Spec, fixed, spec_of

SHARPNESS = -8.0  # c of the paper's equation 4


def _gated(
    x: Any,
    fade: Any,
    take: Any,
    decay: Any,
    fade_bias: Any,
    take_bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Spec:
    given, held = stepwise(x, state, starts, lengths, states)
    heads, width = fixed(held.shape[1]), fixed(held.shape[2])
    require(given.shape[1] == heads * width, f"state {held} must have a number for each column of x {given}")
    for name, value in (("fade", fade), ("take", take)):
        require(rows(name, value).shape == given.shape, f"{name} {spec_of(value)} must be like x {given}")
    for name, value in (("fade_bias", fade_bias), ("take_bias", take_bias)):
        require(rows(name, value).shape == (heads, width), f"{name} {spec_of(value)} must be {[heads, width]}")
    require(
        vector("decay", decay).shape == given.shape[1:], f"decay {spec_of(decay)} must have one element a column of x"
    )
    return given


def _inside(
    x: Any,
    fade: Any,
    take: Any,
    decay: Any,
    fade_bias: Any,
    take_bias: Any,
    state: Any,
    starts: Any,
    lengths: Any,
    states: Any,
) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_gated, updates=("state",), indices=_inside, host=WHOSE)
def gated_lru(x, fade, take, decay, fade_bias, take_bias, state, starts, lengths, states):  # x [tokens, width]
    """RG-LRU (De et al. 2024, section 2.4): float32 [tokens, width].

    fade, take [tokens, width], of which sigmoids are made after fade_bias and take_bias [heads, width / heads] are
    added: r and i. With log a = -8 r softplus(decay), decay [width]: h = a h + sqrt(1 - a ** 2) (i x), and i x alone
    where a sequence begins. state [slots, heads, width / heads] is h.
    """
    gate, kept = (1 / (1 + np.exp(-(each + bias.reshape(-1)))) for each, bias in ((take, take_bias), (fade, fade_bias)))
    faded = np.float32(SHARPNESS) * softplus(decay) * kept
    a, gain, given, out = np.exp(faded), np.sqrt(1 - np.exp(2 * faded)), x * gate, np.empty_like(x)
    begun = starts[:-1][(np.diff(starts) == lengths) & (lengths > 0)]
    gain[begun] = 1  # nothing was before
    for held, own in sequences(state, starts, lengths, states):
        h = held.reshape(-1)
        for row in own:
            h[...] = a[row] * h + gain[row] * given[row]
            out[row] = h
    return out
