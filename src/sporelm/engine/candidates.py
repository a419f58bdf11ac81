"""Finding the greatest logits of a row without sorting the whole vocabulary."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 64  # logits whose maximum is looked at first


def greatest(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Ids of the k greatest logits, in falling order, lower ids first among equals. logits [vocab] without NaN.

    The k-th greatest of the maxima of blocks bounds the k-th greatest logit from below, because k blocks reach it: only
    logits at or above that bound are sorted.
    """
    vocab = len(logits)
    blocks = vocab // BLOCK
    if k >= vocab:
        return np.argsort(-logits, kind="stable")
    if blocks < k:
        return _sorted_above(logits, np.partition(logits, vocab - k)[vocab - k], k)
    whole = blocks * BLOCK
    maxima = logits[:whole].reshape(blocks, BLOCK).max(axis=1)
    if whole < vocab:
        maxima = np.append(maxima, logits[whole:].max())
    return _sorted_above(logits, np.partition(maxima, len(maxima) - k)[len(maxima) - k], k)


def _sorted_above(logits: NDArray[np.float32], bound: np.float32, k: int) -> NDArray[np.intp]:
    """Ids of the k greatest among the logits that reach `bound`; at least k do."""
    above = np.flatnonzero(logits >= bound)
    return above[np.argsort(-logits[above], kind="stable")[:k]]
