"""Disentangled attention (He et al. 2021, "DeBERTa"): scores include terms for the relative position of row and key."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.argument_checks import check_ints, check_rows
from sporelm.ops.encoder_attention import check_starts
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed

MAX_BUCKETS = 1 << 15


def distance_columns(distances: NDArray[np.int64], buckets: int, max_distance: int) -> NDArray[np.int64]:
    """Return the column of each relative position (row minus key): 0 to 2 * buckets - 1.

    Distances up to buckets / 2 have a column each. Larger ones share columns, on a logarithmic scale up to
    `max_distance`, as transformers' modeling_deberta_v2.py computes them in float32.
    """
    middle, apart = buckets // 2, np.abs(distances)
    ratio = np.log(np.maximum(apart, middle).astype(np.float32) / np.float32(middle))
    ratio /= np.log(np.float32((max_distance - 1) / middle))
    far = np.ceil(ratio * np.float32(middle - 1)).astype(np.int64) + middle
    placed = np.where(apart <= middle, distances, far * np.sign(distances))
    return np.clip(placed + buckets, 0, 2 * buckets - 1)


def _disentangled_attention_spec(
    q: Any,
    k: Any,
    v: Any,
    starts: Any,
    row_scores: Any,
    key_scores: Any,
    *,
    head_dim: int,
    scale: float,
    buckets: int,
    max_distance: int,
) -> Spec:
    given = {"q": check_rows("q", q), "k": check_rows("k", k), "v": check_rows("v", v)}
    check_ints("starts", starts)
    wide = given["q"]
    require(head_dim > 0 and head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    require(len(set(given.values())) == 1, f"q {wide}, k {given['k']} and v {given['v']} must have one shape")
    require(require_fixed(wide.shape[1]) % head_dim == 0, f"q {wide} must be whole heads of {head_dim}")
    require(2 <= buckets <= MAX_BUCKETS, f"buckets {buckets} must be 2 to {MAX_BUCKETS}")
    require(max_distance > buckets // 2 + 1, f"max_distance {max_distance} must be more than {buckets // 2 + 1}")
    wanted = wide.shape[0], require_fixed(wide.shape[1]) // head_dim * 2 * buckets
    for name, each in (("row_scores", row_scores), ("key_scores", key_scores)):
        require(check_rows(name, each).shape == wanted, f"{name} {check_rows(name, each)} must be {list(wanted)}")
    return wide


def _check_texts(q: Any, k: Any, v: Any, starts: Any, row_scores: Any, key_scores: Any, **options: Any) -> None:
    check_starts(starts.numpy(), q.shape[0])


@op(_disentangled_attention_spec, indices=_check_texts, host=("starts",))
def disentangled_attention(q, k, v, starts, row_scores, key_scores, *, head_dim, scale, buckets, max_distance):
    """Return softmax((q k + r + c) * scale) v over all rows of each text.

    q, k, v [tokens, heads * head_dim]; starts int32 [texts + 1]: text t has the rows starts[t] : starts[t + 1].
    row_scores, key_scores [tokens, heads * 2 * buckets] hold a score for each column of `distance_columns`. r is the
    row's score for its distance from the key, c the key's score for the same distance.
    """
    heads = q.shape[1] // head_dim
    out = np.zeros(q.shape, np.float32)
    queries, keys, values = (each.reshape(len(q), heads, head_dim) for each in (q, k, v))
    by_row, by_key = (each.reshape(len(q), heads, 2 * buckets) for each in (row_scores, key_scores))
    for start, stop in pairwise(starts):
        if start == stop:
            continue
        place, text = np.arange(stop - start), slice(start, stop)
        columns = np.broadcast_to(
            distance_columns(place[:, None] - place, buckets, max_distance), (heads, len(place), len(place))
        )
        scores = np.einsum("thd,phd->htp", queries[text], keys[text])
        scores += np.take_along_axis(by_row[text].swapaxes(0, 1), columns, axis=2)
        scores += np.take_along_axis(by_key[text].swapaxes(0, 1), columns.swapaxes(1, 2), axis=2).swapaxes(1, 2)
        scores *= np.float32(scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[text] = np.einsum("htp,phd->thd", weights, values[text]).reshape(stop - start, -1)
    return out
