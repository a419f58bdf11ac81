"""Texts as vectors, by what a model makes of them before it scores tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm.api.stepwise import Stepwise, whole
from sporelm.engine import Engine
from sporelm.engine.encoding import Text
from sporelm.engine.reading import EncoderEngine
from sporelm.engine.scheduler import blamed
from sporelm.errors import BackendError, RequestError, shown
from sporelm.weights.config import ModelConfig
from sporelm.weights.dense import Dense

if TYPE_CHECKING:
    from sporelm.api.open_model import OpenModel

POOLINGS = ("mean", "last", "cls")


def embed(
    llm: "OpenModel", texts: Sequence[Sequence[int]], pooling: str, *, normalize: bool, adapter: int = 0
) -> NDArray[np.float32]:
    """A vector for each list of token ids: float32 [texts, width]. Raises RequestError, ContextOverflow."""
    return finished(llm, whole(pooled_all(llm.engine, texts, pooling, adapter), llm.engine), normalize=normalize)


def pooling_of(config: ModelConfig, wished: str | None, texts: Sequence[object]) -> str:
    """The pooling that is wished for, or that of the model's makers, or the mean.

    Raises RequestError for one that there is not, or for no texts.
    """
    pooling = wished if wished is not None else config.pooling or "mean"
    check_wish(texts, pooling)
    return pooling


def pooled_all(
    engine: Engine, texts: Sequence[Sequence[int]], pooling: str, adapter: int
) -> Stepwise[list[NDArray[np.float64]]]:
    """`pooled` of one text after the other."""
    if isinstance(engine, EncoderEngine):
        return (yield from _read_all(engine, texts, pooling))
    found = []
    for ids in texts:
        found.append((yield from pooled(engine, ids, pooling, adapter)))
        yield False
    return found


def _read_all(
    engine: EncoderEngine, texts: Sequence[Sequence[int]], pooling: str
) -> Stepwise[list[NDArray[np.float64]]]:
    """The same of an encoder, several texts in a step."""
    found: dict[int, NDArray[np.float64]] = {}

    def take(number: int, rows: NDArray[np.float32]) -> None:
        wanted = rows if pooling == "mean" else rows[:1] if pooling == "cls" else rows[-1:]
        total = np.add.accumulate(wanted.astype(np.float64), axis=0)[-1]
        if not np.isfinite(total).all():
            raise BackendError("an embedding is not a number: the model's weights are damaged, or of another kind")
        found[number] = total / len(wanted)

    yield from engine.read([Text(ids) for ids in texts], take)
    return [found[number] for number in range(len(texts))]


def cut(ids: list[int], most: int, suffix: Sequence[int]) -> list[int]:
    """At most so many ids, the first ones; where `suffix` stood behind all, it stands behind these."""
    if len(ids) <= most:
        return ids
    end = list(suffix) if suffix and tuple(ids[-len(suffix) :]) == tuple(suffix) else []
    return [*ids[: max(0, most - len(end))], *end][:most]


def check_wish(texts: Sequence[object], pooling: str) -> None:
    """Raise RequestError for a pooling that there is not, or for no texts."""
    if not isinstance(pooling, str) or pooling not in POOLINGS:
        raise RequestError(f"pooling is {shown(pooling)}: it must be one of {', '.join(POOLINGS)}")
    if not texts:
        raise RequestError("there is nothing to embed: give at least one text")


def finished(llm: "OpenModel", found: Sequence[NDArray[np.float64]], *, normalize: bool) -> NDArray[np.float32]:
    """Vectors as they are given away, through the dense layers that the model's files have: float32 [texts, width]."""
    vectors = np.stack(through(llm, found))
    if normalize:
        lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        vectors /= np.where(lengths > 0, lengths, 1)
    return vectors.astype(np.float32)


def through(llm: "OpenModel", found: Sequence[NDArray[np.float64]]) -> Sequence[NDArray[np.float64]]:
    """Pooled vectors, float64 [width], through the model's dense layers, each by itself, for what is beside a vector
    must change no bit of it; products in float32."""
    for layer in llm.config.dense:
        matrix, *bias = (llm.opened.worker.runner.weights[name].numpy() for name in layer.weights)
        found = [activated(layer, matrix, bias, vector) for vector in found]
    return found


def activated(
    layer: Dense, matrix: NDArray[np.float32], bias: Sequence[NDArray[np.float32]], vector: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One vector through one layer: float64 [layer.out]. Raises BackendError for what is not a number."""
    if layer.unit:
        vector = vector / (np.sqrt((vector * vector).sum()) or 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        made = (matrix @ vector.astype(np.float32)).astype(np.float64)
    for each in bias:
        made += each
    if not np.isfinite(made).all():
        raise BackendError("an embedding is not a number: the model's weights are damaged, or of another kind")
    return np.tanh(made) if layer.activation == "tanh" else np.maximum(made, 0) if layer.activation else made


def pooled(engine: Engine, ids: Sequence[int], pooling: str, adapter: int) -> Stepwise[NDArray[np.float64]]:
    """One vector out of those of all positions: float64 [width]. The mean adds them in order, one after the other.

    Raises RequestError, ContextOverflow, MemoryShortage, and BackendError for what is not a number.
    """
    total: NDArray[np.float64] | None = None

    def take(chunk: NDArray[np.float32]) -> None:
        nonlocal total
        if pooling == "mean":
            rows = np.concatenate([chunk[:0] if total is None else total[None], chunk.astype(np.float64)])
            total = np.add.accumulate(rows, axis=0)[-1]
        elif pooling == "last" or total is None:
            total = chunk[0 if pooling == "cls" else -1].astype(np.float64)

    yield from engine.hidden(ids, take, adapter)
    assert total is not None
    if not np.isfinite(total).all():
        raise BackendError(f"an embedding is not a number: {blamed(engine.scheduler.titles.get(adapter))}")
    return total / len(ids) if pooling == "mean" else total
