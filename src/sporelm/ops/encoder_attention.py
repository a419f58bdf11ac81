"""Attention over whole texts, which stand one after the other in a step. Encoders use it in place of a KV cache."""

from itertools import pairwise
from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.argument_checks import check_ints, check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.spec import Spec, require_fixed


def _encoder_attention_spec(
    q: Any,
    k: Any,
    v: Any,
    starts: Any,
    slopes: Any = None,
    biases: Any = None,
    *,
    head_dim: int,
    scale: float,
    half_window: int | None = None,
) -> Spec:
    queries, keys, values = check_rows("q", q), check_rows("k", k), check_rows("v", v)
    check_ints("starts", starts)
    require(head_dim > 0 and head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    require(keys == values, f"k {keys} and v {values} must have one shape")
    require(keys.shape[0] == queries.shape[0], f"k {keys} must have the rows of q {queries}")
    wide = require_fixed(keys.shape[1])
    require(wide % head_dim == 0, f"k {keys} must be whole heads of {head_dim}")
    require(require_fixed(queries.shape[1]) % wide == 0, f"q {queries} must be whole groups of k {keys}")
    heads = require_fixed(queries.shape[1]) // head_dim
    if biases is not None:
        table = check_rows("biases", biases)
        require(table.shape[0] == heads, f"biases {table} must have one row a head: {heads}")
        require(
            require_fixed(table.shape[1]) % (2 * PAGE) == 0,
            f"biases {table} must have whole pages of {PAGE} on both sides",
        )
    if slopes is not None:
        given = check_vector("slopes", slopes)
        require(given.shape == (heads,), f"slopes {given} must have one element a head: {heads}")
    require(half_window is None or half_window >= 0, f"half_window {half_window} must not be negative")
    return queries


def check_starts(first: np.ndarray, tokens: int) -> None:
    """Raise OpError unless the texts cover all rows, each row in one text."""
    ordered = len(first) > 1 and first[0] == 0 and first[-1] == tokens and (np.diff(first) >= 0).all()
    if not ordered:
        raise OpError(f"starts {first.tolist()[:8]} must rise from 0 to the {tokens} rows of q")


def _check_texts(q: Any, k: Any, v: Any, starts: Any, slopes: Any = None, biases: Any = None, **options: Any) -> None:
    """Raise OpError unless the texts cover all rows of q, and no text is longer than the table of biases allows."""
    first = starts.numpy()
    check_starts(first, q.shape[0])
    if biases is not None and np.diff(first).max() > biases.shape[1] // 2:
        raise OpError(f"a text has {np.diff(first).max()} rows; biases are for {biases.shape[1] // 2}")


@op(_encoder_attention_spec, indices=_check_texts, host=("starts",))
def encoder_attention(q, k, v, starts, slopes=None, biases=None, *, head_dim, scale, half_window=None):
    """Return softmax(q k * scale) v over all rows of each text (Vaswani et al. 2017, the encoder).

    q [tokens, heads * head_dim]; k, v [tokens, kv_heads * head_dim], each key head shared by a group of query heads;
    starts int32 [texts + 1]: text t has the rows starts[t] : starts[t + 1]. With `half_window` a row sees the rows at
    most that far before or after it (Longformer's window, Beltagy et al. 2020).

    slopes float32 [heads] lower a score by slope * distance (ALiBi in both directions, Press et al. 2022, as in Jina).
    biases float32 [heads, 2 * far] are added to scores: column far + d for a key d places behind the row (Raffel et al.
    2020). far is a multiple of 64, and no text has more rows.
    """
    tokens, kv_heads = len(q), k.shape[1] // head_dim
    out = np.zeros(q.shape, np.float32)
    queries = (q * np.float32(scale)).reshape(tokens, kv_heads, -1, head_dim)
    keys, values = k.reshape(tokens, kv_heads, head_dim), v.reshape(tokens, kv_heads, head_dim)
    for start, stop in pairwise(starts):
        if start == stop:
            continue
        scores = np.einsum("tkgd,pkd->tkgp", queries[start:stop], keys[start:stop])
        place = np.arange(stop - start)
        apart = np.abs(place - place[:, None])
        if slopes is not None:
            scores -= slopes.reshape(kv_heads, -1, 1) * apart[:, None, None].astype(np.float32)
        if biases is not None:
            added = biases[:, biases.shape[1] // 2 + place - place[:, None]]  # [heads, rows, rows]
            scores += added.reshape(kv_heads, -1, *apart.shape).transpose(2, 0, 1, 3)
        if half_window is not None:
            seen = apart <= half_window
            scores = np.where(seen[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[start:stop] = np.einsum("tkgp,pkd->tkgd", weights, values[start:stop]).reshape(stop - start, -1)
    return out
