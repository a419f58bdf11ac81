"""Lightning attention: linear attention whose state decays at a fixed rate per head.

The module docstring of `ops.recurrent_state` describes states, sequences and rows.
"""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_vector
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import SEQUENCE_ARGUMENTS, check_sequences, check_state, each_sequence
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import F32


def _lightning_attention_spec(x: Any, decay: Any, state: Any, starts: Any, lengths: Any, states: Any) -> Spec:
    given, held = check_state(x, state, starts, lengths, states)
    heads, dim = require_fixed(check_vector("decay", decay).shape[0]), require_fixed(held.shape[2])
    require(held.shape[1] == heads * dim, f"state {held} must have {dim} rows for each of {heads} heads")
    width = 3 * heads * dim
    require(given.shape[1] == width, f"x {given} must have {width} columns: query, key and value of each head")
    return Spec((given.shape[0], heads * dim), F32)


def _check_indices(x: Any, decay: Any, state: Any, starts: Any, lengths: Any, states: Any) -> None:
    check_sequences(x, state, starts, lengths, states)


@op(_lightning_attention_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def lightning_attention(x, decay, state, starts, lengths, states):  # x [tokens, heads * 3 * dim]
    """Apply linear attention with decay (Qin et al. 2024, "Lightning Attention-2"; MiniMax 2025): [tokens, heads *
    dim].

    x has query, key and value of each head, head after head. decay [heads] multiplies the state before each row: S =
    decay * S + k outer v, and y = q S. state [slots, heads * dim, dim].
    """
    heads, dim = len(decay), state.shape[2]
    q, k, v = x.reshape(len(x), heads, 3, dim).swapaxes(0, 2).swapaxes(1, 2)
    out = np.empty((len(x), heads, dim), np.float32)
    for held, own in each_sequence(state, starts, lengths, states):
        s = held.reshape(heads, dim, dim)
        for row in own:
            s *= decay[:, None, None]
            s += k[row][:, :, None] * v[row][:, None]
            out[row] = np.einsum("hk,hkv->hv", q[row], s)
    return out.reshape(len(x), -1)
