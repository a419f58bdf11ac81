"""Texts as vectors, by what a model makes of them before it scores tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sporelm.engine import Engine
from sporelm.errors import BackendError, RequestError, shown

POOLINGS = ("mean", "last", "cls")


def embed(
    engine: Engine, texts: Sequence[Sequence[int]], pooling: str, *, normalize: bool, adapter: int = 0
) -> NDArray[np.float32]:
    """A vector for each list of token ids: float32 [texts, width]. Raises RequestError, ContextOverflow."""
    if not isinstance(pooling, str) or pooling not in POOLINGS:
        raise RequestError(f"pooling is {shown(pooling)}: it must be one of {', '.join(POOLINGS)}")
    if not texts:
        raise RequestError("there is nothing to embed: give at least one text")
    vectors = np.stack([_pooled(engine, ids, pooling, adapter) for ids in texts])
    if not np.isfinite(vectors).all():
        raise BackendError(
            "an embedding is not a number: the weights hold NaN or infinite values; check the model file"
        )
    if normalize:
        lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        vectors /= np.where(lengths > 0, lengths, 1)
    return vectors.astype(np.float32)


def _pooled(engine: Engine, ids: Sequence[int], pooling: str, adapter: int) -> NDArray[np.float64]:
    """One vector out of those of all positions: float64 [width]. The mean adds them in order, one after the other."""
    total: NDArray[np.float64] | None = None
    for chunk in engine.hidden(ids, adapter):
        if pooling == "mean":
            rows = np.concatenate([chunk[:0] if total is None else total[None], chunk.astype(np.float64)])
            total = np.add.accumulate(rows, axis=0)[-1]
        elif pooling == "last" or total is None:
            total = chunk[0 if pooling == "cls" else -1].astype(np.float64)
    assert total is not None
    return total / len(ids) if pooling == "mean" else total
