"""Attention of each row to its own span of keys, without a cache: for vision towers, windows and resamplers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.argument_checks import check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed


def _cross_attention_spec(q: Any, k: Any, v: Any, spans: Any, *, head_dim: int, scale: float) -> Spec:
    queries, keys, values = check_rows("q", q), check_rows("k", k), check_rows("v", v)
    seen = check_ints("spans", spans, rank=2)
    require(head_dim > 0, f"head_dim {head_dim} must be positive")
    require(bool(np.isfinite(scale)), f"scale {scale} must be finite")
    require(keys == values, f"k {keys} and v {values} must have one shape")
    wide = require_fixed(keys.shape[1])
    require(wide % head_dim == 0, f"k {keys} must be whole heads of {head_dim}")
    require(require_fixed(queries.shape[1]) % wide == 0, f"q {queries} must be whole groups of k {keys}")
    require(seen.shape == (queries.shape[0], 2), f"spans {seen} must have a row of two for each of q {queries}")
    return queries


def _check_spans(q: Any, k: Any, v: Any, spans: Any, **options: Any) -> None:
    """Raise OpError unless every span holds keys, and spans ascend, so that equal ones are neighbours."""
    bounds = spans.numpy().astype(np.int64)
    check_range("spans", bounds, 0, k.shape[0] + 1)
    begins, stops = bounds[:, 0], bounds[:, 1]
    for row in np.flatnonzero(begins >= stops)[:1]:
        raise OpError(f"spans[{row}] is {bounds[row].tolist()}; it must hold at least one key")
    order = begins * (k.shape[0] + 1) + stops
    for row in np.flatnonzero(np.diff(order) < 0)[:1] + 1:
        raise OpError(
            f"spans[{row}] is {bounds[row].tolist()} after {bounds[row - 1].tolist()}; spans must ascend, so that rows"
            " with equal spans are neighbours. Sort the rows by their spans."
        )


def span_runs(spans: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first row, last row + 1, first key, last key + 1) for each run of neighbouring rows with equal spans."""
    changes = np.flatnonzero((spans[1:] != spans[:-1]).any(axis=1)) + 1
    edges = [0, *changes.tolist(), len(spans)] if len(spans) else [0]
    for first, last in pairwise(edges):
        yield first, last, int(spans[first, 0]), int(spans[first, 1])


@op(_cross_attention_spec, indices=_check_spans, host=("spans",))
def cross_attention(q, k, v, spans, *, head_dim, scale):
    """Return softmax(q k * scale) v of each row over its own span of keys (Vaswani et al. 2017), float32 like q.

    q [rows, heads * head_dim]; k, v [keys, kv_heads * head_dim], each key head shared by heads / kv_heads query heads;
    spans int32 [rows, 2]: row r sees the keys spans[r, 0] : spans[r, 1], at least one. Spans ascend, by their begin and
    then by their end, so that rows with equal spans are neighbours; kernels compute such rows together.

    A row's result depends on that row and the keys of its span only: the rows of a picture may be computed in pieces
    against all its keys. Windows, the tiles of a picture, and learned queries (Perceiver's resampler, Jaegle et al.
    2021) are spans too.
    """
    out = np.zeros(q.shape, np.float32)
    group = q.shape[1] // k.shape[1]
    for first, last, begin, stop in span_runs(spans):
        for head in range(q.shape[1] // head_dim):
            own = slice(head * head_dim, (head + 1) * head_dim)
            shared = slice(head // group * head_dim, (head // group + 1) * head_dim)
            scores = (q[first:last, own] * np.float32(scale)) @ k[begin:stop, shared].T
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[first:last, own] = weights @ v[begin:stop, shared]
    return out
