"""Lightning attention: a memory of keys and values that fades at a rate of its own in each head.

What `ops.recurrent` says of states, sequences and their rows holds here too.
"""

from typing import Any

import numpy as np

from sporelm.ops.arguments import vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent import WHOSE, check_sequences, sequences, stepwise
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32


def _faded(x: Any, kept: Any, state: Any, starts: Any, lengths: Any, states: Any) -> Spec:
    given, held = stepwise(x, state, starts, lengths, states)
    heads, dim = fixed(vector("kept", kept).shape[0]), fixed(held.shape[2])
    require(held.shape[1] == heads * dim, f"state {held} must have {dim} rows for each of {heads} heads")
    width = 3 * heads * dim
    require(given.shape[1] == width, f"x {given} must have {width} columns: query, key and value of each head")
    return Spec((given.shape[0], heads * dim), F32)


def _faded_inside(x: Any, kept: Any, state: Any, starts: Any, lengths: Any, states: Any) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_faded, updates=("state",), indices=_faded_inside, host=WHOSE)
def lightning_attention(x, kept, state, starts, lengths, states):  # x [tokens, heads * 3 * dim]
    """Linear attention that fades (Qin et al. 2024, "Lightning Attention-2"; MiniMax 2025): [tokens, heads * dim].

    x has query, key and value of each head, one head after the other; kept [heads] is what a row leaves of the state:
    S = kept * S + k outer v, and y = q S. state [slots, heads * dim, dim].
    """
    heads, dim = len(kept), state.shape[2]
    q, k, v = x.reshape(len(x), heads, 3, dim).swapaxes(0, 2).swapaxes(1, 2)
    out = np.empty((len(x), heads, dim), np.float32)
    for held, own in sequences(state, starts, lengths, states):
        s = held.reshape(heads, dim, dim)
        for row in own:
            s *= kept[:, None, None]
            s += k[row][:, :, None] * v[row][:, None]
            out[row] = np.einsum("hk,hkv->hv", q[row], s)
    return out.reshape(len(x), -1)
