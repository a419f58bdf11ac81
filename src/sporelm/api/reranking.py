"""Documents put in order by how well they answer a query, as a reranker scores the two read together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sporelm.api.stepwise import Stepwise, whole
from sporelm.engine import Engine
from sporelm.engine.encoding import Text
from sporelm.engine.reading import EncoderEngine
from sporelm.engine.request import whole_number
from sporelm.errors import BackendError, ContextOverflow, RequestError, shown

if TYPE_CHECKING:
    from sporelm.api.open_model import OpenModel


@dataclass(frozen=True)
class Ranked:
    """One document: its place in the list that was given, and its score."""

    index: int
    score: float


def rerank(
    llm: "OpenModel", query: str, documents: Sequence[str], top_n: int | None, *, normalize: bool
) -> list[Ranked]:
    """The documents, the best first. Raises RequestError, ContextOverflow."""
    return ranked(whole(scored(llm.engine, pairs_of(llm, query, documents, top_n))), top_n, normalize=normalize)


def pairs_of(llm: "OpenModel", query: str, documents: Sequence[str], top_n: int | None) -> list[Text]:
    """The query with each document, as the model reads them.

    Raises RequestError for a model that is no reranker, or for what is no text, ContextOverflow for a pair too long.
    """
    engine = llm.engine
    if not isinstance(engine, EncoderEngine) or not engine.scores:
        raise RequestError(f"{llm.config.name} is no reranker: it has no head that scores texts; take one that has")
    if (labels := llm.config.own.labels) != 1:
        raise RequestError(f"{llm.config.name} puts texts into {labels} classes: a reranker has one score")
    if isinstance(documents, str) or not isinstance(documents, Sequence) or not documents:
        raise RequestError(f"documents is {shown(documents)}: it must be a list of at least one text")
    if top_n is not None and whole_number("top_n", top_n) < 1:
        raise RequestError(f"top_n is {shown(top_n)}: it must be at least 1")
    pairs = []
    for number, document in enumerate(documents, 1):
        for name, text in (("the query", query), (f"document {number} of {len(documents)}", document)):
            if not isinstance(text, str):
                raise RequestError(f"{name} is {shown(text)}: it must be a text")
            llm.check_readable(text)
        pairs.append(Text(*llm.tokenizer.encode_pair(query, document)))
        try:
            engine.check_text(pairs[-1])
        except ContextOverflow as reason:
            raise ContextOverflow(
                f"document {number} of {len(documents)}, with the query: {reason}",
                fact=reason.fact,
                larger=reason.larger,
                rolls=reason.rolls,
            ) from None
    return pairs


def scored(engine: Engine, texts: Sequence[Text]) -> Stepwise[list[float]]:
    """What the model's head says of each text."""
    assert isinstance(engine, EncoderEngine)
    found = [0.0] * len(texts)

    def take(number: int, scores: np.ndarray) -> None:
        found[number] = float(scores[0])
        if not np.isfinite(scores[0]):
            raise BackendError("a score is not a number: the model's weights are damaged, or of another kind")

    yield from engine.read(texts, take, scores=True)
    return found


def ranked(scores: Sequence[float], top_n: int | None, *, normalize: bool) -> list[Ranked]:
    """The best first, of equal ones the earlier; `normalize`: by the logistic function, between 0 and 1."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    return [Ranked(index, _logistic(scores[index]) if normalize else scores[index]) for index in order]


def _logistic(score: float) -> float:
    with np.errstate(over="ignore"):
        return float(1 / (1 + np.exp(-np.float64(score))))
