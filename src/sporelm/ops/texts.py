"""Ops on whole texts, which stand one after the other in a step: what encoders have in place of a cache."""

from itertools import pairwise
from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.arguments import ints, rows, vector, within
from sporelm.ops.attention import PAGE
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32


def _attended(
    q: Any,
    k: Any,
    v: Any,
    starts: Any,
    slopes: Any = None,
    biases: Any = None,
    *,
    head_dim: int,
    scale: float,
    reach: int | None = None,
) -> Spec:
    queries, keys, values = rows("q", q), rows("k", k), rows("v", v)
    ints("starts", starts)
    require(head_dim > 0 and head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    require(keys == values, f"k {keys} and v {values} must have one shape")
    require(keys.shape[0] == queries.shape[0], f"k {keys} must have the rows of q {queries}")
    wide = fixed(keys.shape[1])
    require(wide % head_dim == 0, f"k {keys} must be whole heads of {head_dim}")
    require(fixed(queries.shape[1]) % wide == 0, f"q {queries} must be whole groups of k {keys}")
    heads = fixed(queries.shape[1]) // head_dim
    if biases is not None:
        table = rows("biases", biases)
        require(table.shape[0] == heads, f"biases {table} must have one row a head: {heads}")
        require(
            fixed(table.shape[1]) % (2 * PAGE) == 0, f"biases {table} must have whole pages of {PAGE} on both sides"
        )
    if slopes is not None:
        given = vector("slopes", slopes)
        require(given.shape == (heads,), f"slopes {given} must have one element a head: {heads}")
    require(reach is None or reach >= 0, f"reach {reach} must not be negative")
    return queries


def _averaged(x: Any, firsts: Any, stops: Any) -> Spec:
    begins, ends = ints("firsts", firsts), ints("stops", stops)
    require(begins == ends, f"firsts {begins} and stops {ends} must have one shape")
    return Spec((begins.shape[0], rows("x", x).shape[1]), F32)


def _runs_inside(x: Any, firsts: Any, stops: Any) -> None:
    begins, ends = firsts.numpy(), stops.numpy()
    within("firsts", begins, 0, x.shape[0])
    within("stops", ends, 1, x.shape[0] + 1)
    for index in np.flatnonzero(begins >= ends):
        raise OpError(f"stops[{index}] is {ends[index]}; it must be more than firsts[{index}], {begins[index]}")


def check_starts(first: np.ndarray, tokens: int) -> None:
    """Raise OpError unless texts that begin at these rows are all the rows, each of them in one."""
    ordered = len(first) > 1 and first[0] == 0 and first[-1] == tokens and (np.diff(first) >= 0).all()
    if not ordered:
        raise OpError(f"starts {first.tolist()[:8]} must rise from 0 to the {tokens} rows of q")


def _texts_inside(q: Any, k: Any, v: Any, starts: Any, slopes: Any = None, biases: Any = None, **options: Any) -> None:
    """Raise OpError unless the texts are the rows of q, each of them in one, and none is longer than biases reach."""
    first = starts.numpy()
    check_starts(first, q.shape[0])
    if biases is not None and np.diff(first).max() > biases.shape[1] // 2:
        raise OpError(f"a text has {np.diff(first).max()} rows; biases are for {biases.shape[1] // 2}")


@op(_attended, indices=_texts_inside, host=("starts",))
def text_attention(q, k, v, starts, slopes=None, biases=None, *, head_dim, scale, reach=None):
    """softmax(q k * scale) v of the rows of each text, all of which see each other (Vaswani et al. 2017, the encoder).

    q [tokens, heads * head_dim]; k, v [tokens, kv_heads * head_dim], each key head shared by a group of query heads;
    starts int32 [texts + 1]: rows starts[t] : starts[t + 1] are those of text t. With `reach` a row sees those that
    stand at most so many places before it or after it (Longformer's window, Beltagy et al. 2020).
    slopes float32 [heads], if given, are by how much a score falls with each place between the two (ALiBi in both
    directions, Press et al. 2022 as Jina has it).
    biases float32 [heads, 2 * far], if given, are added to scores: column far + d to that of a row and one d places
    behind it (Raffel et al. 2020). far is a multiple of 64, and no text has more rows.
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
        if reach is not None:
            seen = apart <= reach
            scores = np.where(seen[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[start:stop] = np.einsum("tkgp,pkd->tkgd", weights, values[start:stop]).reshape(stop - start, -1)
    return out


@op(_averaged, indices=_runs_inside, host=("firsts", "stops"))
def mean_rows(x, firsts, stops):  # x [tokens, width], firsts, stops int32 [texts]
    """The mean of the rows firsts[t] : stops[t] of each text, summed in their order: float32 [texts, width]."""
    means = [x[first:stop].sum(axis=0) / np.float32(stop - first) for first, stop in zip(firsts, stops, strict=True)]
    return np.array(means, np.float32).reshape(len(firsts), x.shape[1])
