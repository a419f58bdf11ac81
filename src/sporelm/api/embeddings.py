"""Embeddings: pool the hidden states of a text into one vector."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm.api.cooperative import CooperativeTask, run_to_completion
from sporelm.engine import Engine
from sporelm.engine.encoder_engine import EncoderEngine
from sporelm.engine.encoder_runner import EncoderText
from sporelm.engine.scheduler import explain_nan
from sporelm.errors import BackendError, RequestError, safe_repr
from sporelm.models.config import ModelConfig
from sporelm.models.dense_layers import Dense

if TYPE_CHECKING:
    from sporelm.api.loaded_llm import LoadedLLM

POOLINGS = ("mean", "last", "cls")
NOT_FINITE = "an embedding is not a number: the model's weights are damaged, or of another kind"


def embed(
    llm: "LoadedLLM", texts: Sequence[Sequence[int]], pooling: str, *, normalize: bool, adapter_id: int = 0
) -> NDArray[np.float32]:
    """Return a vector for each list of token ids: float32 [texts, width]. Raises RequestError, ContextOverflow."""
    engine = llm.inference_engine
    pooled = run_to_completion(pool_texts(engine, texts, pooling, adapter_id), engine)
    return finish_vectors(llm, pooled, normalize=normalize)


def choose_pooling(config: ModelConfig, requested: str | None, texts: Sequence[object]) -> str:
    """Return the requested pooling, else that of the model's files, else the mean.

    Raises RequestError for an unknown pooling, or if there are no texts.
    """
    pooling = requested if requested is not None else config.pooling or "mean"
    if not isinstance(pooling, str) or pooling not in POOLINGS:
        raise RequestError(f"pooling is {safe_repr(pooling)}: it must be one of {', '.join(POOLINGS)}")
    if not texts:
        raise RequestError("there is nothing to embed: give at least one text")
    return pooling


def pool_texts(
    engine: Engine | EncoderEngine, texts: Sequence[Sequence[int]], pooling: str, adapter_id: int
) -> CooperativeTask[list[NDArray[np.float64]]]:
    """Pool each text into a vector, float64 [width]."""
    if isinstance(engine, EncoderEngine):
        return (yield from _pool_encoder_texts(engine, texts, pooling))
    vectors = []
    for ids in texts:
        vectors.append((yield from pool_text(engine, ids, pooling, adapter_id)))
    return vectors


def _pool_encoder_texts(
    engine: EncoderEngine, texts: Sequence[Sequence[int]], pooling: str
) -> CooperativeTask[list[NDArray[np.float64]]]:
    """Pool texts with an encoder, several texts a step."""
    vectors: dict[int, NDArray[np.float64]] = {}

    def pool(index: int, rows: NDArray[np.float32]) -> None:
        pooled_rows = rows if pooling == "mean" else rows[:1] if pooling == "cls" else rows[-1:]
        total = np.add.accumulate(pooled_rows.astype(np.float64), axis=0)[-1]
        if not np.isfinite(total).all():
            raise BackendError(NOT_FINITE)
        vectors[index] = total / len(pooled_rows)

    yield from engine.read([EncoderText(ids) for ids in texts], pool)
    return [vectors[index] for index in range(len(texts))]


def truncate_ids(ids: list[int], max_tokens: int, suffix: Sequence[int]) -> list[int]:
    """Return the first `max_tokens` ids; if all ids end with `suffix`, so does the result."""
    if len(ids) <= max_tokens:
        return ids
    end = list(suffix) if suffix and tuple(ids[-len(suffix) :]) == tuple(suffix) else []
    return [*ids[: max(0, max_tokens - len(end))], *end][:max_tokens]


def finish_vectors(llm: "LoadedLLM", pooled: Sequence[NDArray[np.float64]], *, normalize: bool) -> NDArray[np.float32]:
    """Apply the model's dense layers to pooled vectors and normalize them: float32 [texts, width]."""
    vectors = np.stack(apply_dense_layers(llm, pooled))
    if normalize:
        lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        vectors /= np.where(lengths > 0, lengths, 1)
    return vectors.astype(np.float32)


def apply_dense_layers(llm: "LoadedLLM", vectors: Sequence[NDArray[np.float64]]) -> Sequence[NDArray[np.float64]]:
    """Apply the model's dense layers to pooled vectors, float64 [width].

    Each vector is multiplied by itself, in float32, so that its bits do not depend on the others.
    """
    for layer in llm.config.dense:
        matrix, *bias = (llm.loaded_engine.worker.runner.weights[name].numpy() for name in layer.weights)
        vectors = [apply_dense_layer(layer, matrix, bias, vector) for vector in vectors]
    return vectors


def apply_dense_layer(
    layer: Dense, matrix: NDArray[np.float32], bias: Sequence[NDArray[np.float32]], vector: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Apply one dense layer to one vector: float64 [layer.out]. Raises BackendError if the result is not finite."""
    if layer.unit:
        vector = vector / (np.sqrt((vector * vector).sum()) or 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        result = (matrix @ vector.astype(np.float32)).astype(np.float64)
    for each in bias:
        result += each
    if not np.isfinite(result).all():
        raise BackendError(NOT_FINITE)
    return np.tanh(result) if layer.activation == "tanh" else np.maximum(result, 0) if layer.activation else result


def pool_text(
    engine: Engine, ids: Sequence[int], pooling: str, adapter_id: int
) -> CooperativeTask[NDArray[np.float64]]:
    """Pool the hidden states of one text: float64 [width]. The mean adds the positions in order.

    Raises RequestError, ContextOverflow, MemoryShortage, and BackendError if the result is not finite.
    """
    total: NDArray[np.float64] | None = None

    def add(chunk: NDArray[np.float32]) -> None:
        nonlocal total
        if pooling == "mean":
            rows = np.concatenate([chunk[:0] if total is None else total[None], chunk.astype(np.float64)])
            total = np.add.accumulate(rows, axis=0)[-1]
        elif pooling == "last" or total is None:
            total = chunk[0 if pooling == "cls" else -1].astype(np.float64)

    yield from engine.hidden(ids, add, adapter_id)
    assert total is not None
    if not np.isfinite(total).all():
        raise BackendError(
            f"an embedding is not a number: {explain_nan(engine.scheduler.adapter_names.get(adapter_id))}"
        )
    return total / len(ids) if pooling == "mean" else total
