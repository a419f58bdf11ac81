"""Learned biases of attention scores, one for each head and bucket of distances between rows."""

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.paged_attention import PAGE

BUCKETS, FARTHEST = 32, 128


def bucket_of(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each distance, the position of the key minus that of the query (Raffel et al. 2020).

    Each sign has half of the buckets. Half of those hold one distance each; the others grow by a factor, up to
    `FARTHEST`. In float32, as transformers computes it.
    """
    side, exact = BUCKETS // 2, BUCKETS // 4
    apart = np.abs(distances)
    ratio = np.log(np.maximum(apart, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(FARTHEST / exact))
    far = exact + (ratio * np.float32(side - exact)).astype(np.int64)
    return np.where(distances > 0, side, 0) + np.where(apart < exact, apart, np.minimum(far, side - 1))


def spread_biases(learned: NDArray[np.float32], context: int) -> NDArray[np.float32]:
    """Return the biases of texts of up to `context` rows, from learned [buckets, heads]: float32 [heads, 2 * far] for
    `ops.encoder_attention`."""
    far = -(-context // PAGE) * PAGE
    return np.ascontiguousarray(learned[bucket_of(np.arange(-far, far))].T, np.float32)
