"""Finding the greatest logits of rows without sorting the whole vocabulary."""

import numpy as np
from numpy.typing import NDArray

DEPTH = 64  # logits whose maximum is looked at first


def greatest(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Ids of the k greatest logits of each row, in falling order, lower ids first among equals: [rows, k].

    logits [rows, vocab] without NaN. A row is looked at as DEPTH lines one below the other; the k-th greatest of the
    maxima of columns bounds the k-th greatest logit from below, because k columns reach it: only the values of k
    columns are sorted.
    """
    count, vocab = logits.shape
    columns = -(-vocab // DEPTH)
    if k * 4 >= vocab or columns <= k:
        return np.argsort(-logits, axis=1, kind="stable")[:, :k]
    if columns * DEPTH > vocab:
        full = np.full((count, columns * DEPTH), -np.inf, np.float32)
        full[:, :vocab] = logits
    else:
        full = logits
    lines = full.reshape(count, DEPTH, columns)
    maxima = lines.max(axis=1)
    chosen = np.argpartition(maxima, columns - k, axis=1)[:, columns - k :]
    bound = np.take_along_axis(maxima, chosen, axis=1).min(axis=1, keepdims=True)
    values = np.take_along_axis(lines, chosen[:, None, :], axis=2).reshape(count, -1)
    ids = (np.arange(DEPTH)[:, None] * columns + chosen[:, None, :]).reshape(count, -1)
    # A number that orders by value and then by id; adding 0 makes -0 the 0 that it equals.
    bits = (values + np.float32(0)).view(np.int32)
    ranks = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32) | (0xFFFFFFFF - ids)
    ranks = np.sort(np.partition(ranks, ranks.shape[1] - k, axis=1)[:, ranks.shape[1] - k :], axis=1)[:, ::-1]
    found = 0xFFFFFFFF - (ranks & 0xFFFFFFFF)
    # Columns as good as the worst that was chosen may hold lower ids of equal logits.
    for row in np.flatnonzero((maxima >= bound).sum(axis=1) > k):
        found[row] = np.argsort(-logits[row], kind="stable")[:k]
    return found.astype(np.intp, copy=False)
