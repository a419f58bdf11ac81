"""Finding the greatest logits of rows without sorting the whole vocabulary."""

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

DEPTH = 64  # logits whose maximum is looked at first
GATHERED = 32  # values are gathered from columns, rather than all compared, if they are this many times fewer


def top_k_ids(logits: NDArray[np.float32], k: int) -> Ids:
    """Return the ids of the k greatest logits of each row, in falling order, lower ids first among equals: [rows, k].

    logits [rows, vocab] without NaN. A row is viewed as DEPTH lines one below the other; the k-th greatest of the
    maxima of columns bounds the k-th greatest logit from below, because k columns reach it: only values that reach the
    bound are sorted.
    """
    count, vocab = logits.shape
    columns = vocab // DEPTH
    if k * 4 >= vocab or columns <= k:
        return np.argsort(-logits, axis=1, kind="stable")[:, :k]
    maxima = logits[:, : columns * DEPTH].reshape(count, DEPTH, columns).max(axis=1)
    bounds = np.partition(maxima, columns - k, axis=1)[:, columns - k].tolist()
    found = np.empty((count, k), np.intp)
    for row, (values, tops, bound) in enumerate(zip(logits, maxima, bounds, strict=True)):
        near = _reaching(values, tops, bound, k)
        near = near[np.argsort(-values[near], kind="stable")[:k]]
        found[row, : len(near)] = near
        if len(near) < k:  # no more are possible: the lowest ids of the rest follow
            found[row, len(near) :] = np.flatnonzero(values[:k] == -np.inf)[: k - len(near)]
    return found


def _reaching(values: Row, maxima: Row, bound: float, k: int) -> Ids:
    """Return the ids, rising, of the values of a row that reach the bound; all above it if that is -inf."""
    if bound == -np.inf:
        return np.flatnonzero(values > bound)
    vocab, columns = len(values), len(maxima)
    if vocab < GATHERED * k * DEPTH:
        return np.flatnonzero(values >= bound)
    near = np.flatnonzero(maxima >= bound)
    line, column = np.nonzero(values[: columns * DEPTH].reshape(DEPTH, columns)[:, near] >= bound)
    rest = np.flatnonzero(values[columns * DEPTH :] >= bound) + columns * DEPTH
    return np.concatenate([line * columns + near[column], rest])
