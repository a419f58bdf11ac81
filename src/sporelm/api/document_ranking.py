"""Reranking: score how well each document answers a query, and sort the documents."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.api.cooperative import CooperativeTask, run_to_completion
from sporelm.engine.encoder_engine import EncoderEngine
from sporelm.engine.encoder_runner import EncoderText
from sporelm.engine.request import parse_int
from sporelm.errors import BackendError, ContextOverflow, RequestError, safe_repr
from sporelm.models.decoder import CLASSIFIER
from sporelm.models.encoder_config import EncoderConfig
from sporelm.text.chat_templates.rerank_prompt import find_answer_ids, find_rerank_template, make_rerank_encoder

if TYPE_CHECKING:
    from sporelm.api.loaded_llm import LoadedLLM


@dataclass(frozen=True)
class RerankResult:
    """One document of a reranking: its index in the input list, and its score."""

    index: int
    score: float


def rerank(
    llm: "LoadedLLM", query: str, documents: Sequence[str], top_n: int | None, *, normalize: bool
) -> list[RerankResult]:
    """Return the documents, the best first. Raises RequestError, ContextOverflow."""
    scores = run_to_completion(score_texts(llm, encode_pairs(llm, query, documents, top_n)), llm.inference_engine)
    return sort_by_score(scores, top_n, normalize=normalize)


def encode_pairs(llm: "LoadedLLM", query: str, documents: Sequence[str], top_n: int | None) -> list[EncoderText]:
    """Tokenize the query with each document, in the form that the model expects.

    Raises RequestError for a model that is not a reranker or for invalid arguments, ContextOverflow for a pair that is
    too long.
    """
    pair_encoder = _pair_encoder(llm)
    if isinstance(documents, str) or not isinstance(documents, Sequence) or not documents:
        raise RequestError(f"documents is {safe_repr(documents)}: it must be a list of at least one text")
    if top_n is not None and parse_int("top_n", top_n) < 1:
        raise RequestError(f"top_n is {safe_repr(top_n)}: it must be at least 1")
    _check_text(llm, "the query", query)
    encode_document = pair_encoder(query)
    pairs = list[EncoderText]()
    for index, document in enumerate(documents):
        name = f"document {index + 1} of {len(documents)} (index {index})"
        _check_text(llm, name, document)
        pairs.append(encode_document(document))
        with _prefix_overflow(f"{name}, with the query"):
            llm.check_prompt_length(len(pairs[-1].tokens))
    return pairs


@contextmanager
def _prefix_overflow(name: str) -> Iterator[None]:
    """Name the text in a ContextOverflow that is raised inside."""
    try:
        yield
    except ContextOverflow as reason:
        fact = f"{name}: {reason.fact}" if reason.fact else ""
        raise ContextOverflow(
            f"{name}: {reason}",
            fact=fact,
            larger=reason.larger,
            rolls=reason.rolls,
            tokens=reason.tokens,
            context=reason.context,
        ) from None


def _check_text(llm: "LoadedLLM", name: str, text: object) -> None:
    """Raise RequestError if `text` is not a string, ContextOverflow if it is far too long. Both errors name it."""
    if not isinstance(text, str):
        raise RequestError(f"{name} is {safe_repr(text)}: it must be a string")
    with _prefix_overflow(name):
        llm.check_text_length(text)


def _pair_encoder(llm: "LoadedLLM") -> Callable[[str], Callable[[str], EncoderText]]:
    """Return a function that takes a query and returns one that encodes it with a document.

    Raises RequestError for a model that is not a reranker.
    """
    engine = llm.inference_engine
    tokenizer = llm.tokenizer
    name = llm.config.name
    if isinstance(engine, EncoderEngine) and engine.has_classifier:
        assert isinstance(llm.config, EncoderConfig)
        labels = llm.config.head_labels
        if labels != 1:
            raise RequestError(f"{name} puts texts into {labels} classes: a reranker has one score")

        def for_encoder(query: str) -> Callable[[str], EncoderText]:
            encode = tokenizer.pair_encoder(query)
            return lambda document: EncoderText(*encode(document))

        return for_encoder
    template = None
    if not isinstance(engine, EncoderEngine):
        template = find_rerank_template(tokenizer, name, llm.loaded_engine.path.name)
    if template is None:
        raise RequestError(f"{name} is not a reranker: it has no head that scores texts; use a model that has one")
    find_answer_ids(tokenizer)

    def for_decoder(query: str) -> Callable[[str], EncoderText]:
        encode = make_rerank_encoder(tokenizer, template, query)
        return lambda document: EncoderText(encode(document))

    return for_decoder


def score_texts(llm: "LoadedLLM", texts: Sequence[EncoderText]) -> CooperativeTask[list[float]]:
    """Return a score for each text: the output of the model's head, or its logit of "yes" minus that of "no"."""
    scores = [0.0] * len(texts)
    engine = llm.inference_engine

    def set_score(index: int, score: float) -> None:
        if not np.isfinite(score):
            raise BackendError("a score is not a number: the model's weights are damaged, or of another kind")
        scores[index] = score

    if isinstance(engine, EncoderEngine):
        yield from engine.read(texts, lambda index, head: set_score(index, float(head[0])), scores=True)
        return scores
    direction: NDArray[np.float64] | None = None  # computed by the thread that steps the engine
    last = np.zeros(0)

    def keep_last(chunk: NDArray[np.float32]) -> None:
        nonlocal direction, last
        last = chunk[-1].astype(np.float64)
        direction = _yes_minus_no(llm) if direction is None else direction

    for index, text in enumerate(texts):
        yield from engine.hidden(text.tokens, keep_last)
        assert direction is not None
        set_score(index, float(last @ direction))
    return scores


def _yes_minus_no(llm: "LoadedLLM") -> NDArray[np.float64]:
    """Return the output row of "yes" minus that of "no", with the model's output scale: float64 [width]."""
    config = llm.config
    weights = llm.loaded_engine.worker.runner.weights
    if config.labels:
        rows = weights[CLASSIFIER].numpy()
    else:
        ids = llm.backend.tensor(np.array(find_answer_ids(llm.tokenizer), np.int32))
        rows = ops.embedding(ids, weights["embedding.weight" if config.tie_embeddings else "output.weight"]).numpy()
    yes, no = rows.astype(np.float64)
    return np.asarray((yes - no) * (config.scales.output / config.scales.logits))


def sort_by_score(scores: Sequence[float], top_n: int | None, *, normalize: bool) -> list[RerankResult]:
    """Sort by score, the best first and ties by index; `normalize` maps scores to 0..1 by the logistic function."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    return [RerankResult(index, _logistic(scores[index]) if normalize else scores[index]) for index in order]


def _logistic(score: float) -> float:
    with np.errstate(over="ignore"):
        return float(1 / (1 + np.exp(-np.float64(score))))
