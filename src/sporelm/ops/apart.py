"""Attention whose scores have what rows make of distances (He et al. 2021, "DeBERTa": disentangled attention)."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.arguments import ints, rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.ops.texts import check_starts

MOST_BUCKETS = 1 << 15


def columns_of(distances: NDArray[np.int64], buckets: int, farthest: int) -> NDArray[np.int64]:
    """The column of a row that stands so many places behind another, negative for before: 0 to 2 * buckets - 1.

    Up to half of `buckets` places each distance has its own, farther ones share them, ever more, up to `farthest`; as
    transformers' modeling_deberta_v2.py computes it, in float32.
    """
    middle, apart = buckets // 2, np.abs(distances)
    ratio = np.log(np.maximum(apart, middle).astype(np.float32) / np.float32(middle))
    ratio /= np.log(np.float32((farthest - 1) / middle))
    far = np.ceil(ratio * np.float32(middle - 1)).astype(np.int64) + middle
    placed = np.where(apart <= middle, distances, far * np.sign(distances))
    return np.clip(placed + buckets, 0, 2 * buckets - 1)


def _attended(
    q: Any,
    k: Any,
    v: Any,
    starts: Any,
    of_rows: Any,
    of_keys: Any,
    *,
    head_dim: int,
    scale: float,
    buckets: int,
    farthest: int,
) -> Spec:
    given = {"q": rows("q", q), "k": rows("k", k), "v": rows("v", v)}
    ints("starts", starts)
    wide = given["q"]
    require(head_dim > 0 and head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    require(len(set(given.values())) == 1, f"q {wide}, k {given['k']} and v {given['v']} must have one shape")
    require(fixed(wide.shape[1]) % head_dim == 0, f"q {wide} must be whole heads of {head_dim}")
    require(2 <= buckets <= MOST_BUCKETS, f"buckets {buckets} must be 2 to {MOST_BUCKETS}")
    require(farthest > buckets // 2 + 1, f"farthest {farthest} must be more than {buckets // 2 + 1}")
    wanted = wide.shape[0], fixed(wide.shape[1]) // head_dim * 2 * buckets
    for name, each in (("of_rows", of_rows), ("of_keys", of_keys)):
        require(rows(name, each).shape == wanted, f"{name} {rows(name, each)} must be {list(wanted)}")
    return wide


def _texts_inside(q: Any, k: Any, v: Any, starts: Any, of_rows: Any, of_keys: Any, **options: Any) -> None:
    check_starts(starts.numpy(), q.shape[0])


@op(_attended, indices=_texts_inside, host=("starts",))
def apart_attention(q, k, v, starts, of_rows, of_keys, *, head_dim, scale, buckets, farthest):
    """softmax((q k + r + c) * scale) v of the rows of each text, all of which see each other.

    q, k, v [tokens, heads * head_dim]; starts int32 [texts + 1]: rows starts[t] : starts[t + 1] are those of text t.
    of_rows, of_keys [tokens, heads * 2 * buckets]: a number for each distance, in `columns_of`. r is the row's for how
    far it stands behind the key, c the key's for the same.
    """
    heads = q.shape[1] // head_dim
    out = np.zeros(q.shape, np.float32)
    queries, keys, values = (each.reshape(len(q), heads, head_dim) for each in (q, k, v))
    by_row, by_key = (each.reshape(len(q), heads, 2 * buckets) for each in (of_rows, of_keys))
    for start, stop in pairwise(starts):
        if start == stop:
            continue
        place, text = np.arange(stop - start), slice(start, stop)
        columns = np.broadcast_to(
            columns_of(place[:, None] - place, buckets, farthest), (heads, len(place), len(place))
        )
        scores = np.einsum("thd,phd->htp", queries[text], keys[text])
        scores += np.take_along_axis(by_row[text].swapaxes(0, 1), columns, axis=2)
        scores += np.take_along_axis(by_key[text].swapaxes(0, 1), columns.swapaxes(1, 2), axis=2).swapaxes(1, 2)
        scores *= np.float32(scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[text] = np.einsum("htp,phd->thd", weights, values[text]).reshape(stop - start, -1)
    return out
