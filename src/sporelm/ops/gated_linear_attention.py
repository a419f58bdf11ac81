"""Gated linear attention over a recurrent state."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows
from sporelm.ops.op import op, require
from sporelm.ops.recurrent_state import SEQUENCE_ARGUMENTS, check_sequences, check_state, each_sequence, head_pairs
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32


def _gated_linear_attention_spec(
    r: Any, w: Any, k: Any, v: Any, state: Any, starts: Any, lengths: Any, states: Any, *, heads: int, key_heads: int
) -> Spec:
    given, held = check_state(r, state, starts, lengths, states)
    require(0 < key_heads <= heads and heads % key_heads == 0, f"{heads} heads are not a multiple of {key_heads}")
    require(given.shape[1] == held.shape[1], f"state {held} must have a row for each column of r {given}")
    require(require_fixed(given.shape[1]) % heads == 0, f"r {given} must be {heads} whole heads")
    require(check_rows("w", w) == given, f"w {spec_of(w)} must be like r {given}")
    dim, value_dim = require_fixed(given.shape[1]) // heads, require_fixed(held.shape[2])
    for name, value, width in (("k", k, dim), ("v", v, value_dim)):
        wanted = Spec((given.shape[0], key_heads * width), F32)
        require(
            check_rows(name, value) == wanted, f"{name} {spec_of(value)} must be {key_heads} heads of {width} columns"
        )
    return Spec((given.shape[0], heads * value_dim), F32)


def _check_indices(r: Any, *args: Any, **_: Any) -> None:
    check_sequences(r, *args[-4:])


@op(_gated_linear_attention_spec, updates=("state",), indices=_check_indices, host=SEQUENCE_ARGUMENTS)
def gated_linear_attention(r, w, k, v, state, starts, lengths, states, *, heads, key_heads):
    """Apply linear attention whose keys are weighted by 1 - decay (QRWKV6; Yang et al. 2023): float32 [tokens, heads *
    value_dim].

    r, w [tokens, heads * dim]; k [tokens, key_heads * dim] and v [tokens, key_heads * value_dim], one per group of
    heads; state [slots, heads * dim, value_dim]. Per head, with d = exp(-exp(w)) for each row of S: S = d S + ((1 - d)
    k) outer v, and the output is r S / sqrt(dim).
    """
    dim = r.shape[1] // heads
    whose = head_pairs(heads, key_heads, "each")
    r, w = (each.reshape(len(r), heads, dim) for each in (r, w))
    k, v = (each.reshape(len(r), key_heads, -1)[:, whose] for each in (k, v))
    with np.errstate(over="ignore"):
        decay = np.exp(-np.exp(w))
    key, out = k * (1 - decay), np.empty((len(r), heads, state.shape[2]), np.float32)
    for held, own in each_sequence(state, starts, lengths, states):
        s = held.reshape(heads, dim, -1)
        for row in own:
            s *= decay[row, :, :, None]
            s += key[row][:, :, None] * v[row][:, None]
            out[row] = np.einsum("hk,hkv->hv", r[row], s)
    return (out * np.float32(dim**-0.5)).reshape(len(r), -1)
