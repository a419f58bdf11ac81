"""Documents put in order by how well they answer a query, as a reranker scores the two read together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.api.stepwise import Stepwise, whole
from sporelm.engine.encoding import Text
from sporelm.engine.reading import EncoderEngine
from sporelm.engine.request import whole_number
from sporelm.errors import BackendError, ContextOverflow, RequestError, shown
from sporelm.models.decoder import CLASSIFIER
from sporelm.text.reranking import answer_ids, rerank_prompts, rerank_template

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
    return ranked(whole(scored(llm, pairs_of(llm, query, documents, top_n)), llm.engine), top_n, normalize=normalize)


def pairs_of(llm: "OpenModel", query: str, documents: Sequence[str], top_n: int | None) -> list[Text]:
    """The query with each document, as the model reads them.

    Raises RequestError for a model that is no reranker, or for what is no text, ContextOverflow for a pair too long.
    """
    reader = _reader(llm)
    if isinstance(documents, str) or not isinstance(documents, Sequence) or not documents:
        raise RequestError(f"documents is {shown(documents)}: it must be a list of at least one text")
    if top_n is not None and whole_number("top_n", top_n) < 1:
        raise RequestError(f"top_n is {shown(top_n)}: it must be at least 1")
    _check_text(llm, "the query", query)
    read, pairs = reader(query), list[Text]()
    for index, document in enumerate(documents):
        name = f"document {index + 1} of {len(documents)} (index {index})"
        _check_text(llm, name, document)
        pairs.append(read(document))
        with _named(f"{name}, with the query"):
            llm.engine.limits.check_prompt(len(pairs[-1].tokens))
    return pairs


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Text that is too long has a name in the error."""
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


def _check_text(llm: "OpenModel", name: str, text: object) -> None:
    """Raise RequestError for what is no text that can be read, ContextOverflow for one far too long; both name it."""
    if not isinstance(text, str):
        raise RequestError(f"{name} is {shown(text)}: it must be a text")
    with _named(name):
        llm.check_readable(text)


def _reader(llm: "OpenModel") -> Callable[[str], Callable[[str], Text]]:
    """What takes a query, once, and then puts documents together with it for the model.

    Raises RequestError for a model that is no reranker.
    """
    engine, tokenizer, name = llm.engine, llm.tokenizer, llm.config.name
    if isinstance(engine, EncoderEngine) and engine.scores:
        if (labels := llm.config.own.labels) != 1:
            raise RequestError(f"{name} puts texts into {labels} classes: a reranker has one score")

        def of_pairs(query: str) -> Callable[[str], Text]:
            encode = tokenizer.pair_encoder(query)
            return lambda document: Text(*encode(document))

        return of_pairs
    template = None if isinstance(engine, EncoderEngine) else rerank_template(tokenizer, name, llm.opened.path.name)
    if template is None:
        raise RequestError(f"{name} is no reranker: it has no head that scores texts; take one that has")
    answer_ids(tokenizer)

    def of_prompts(query: str) -> Callable[[str], Text]:
        encode = rerank_prompts(tokenizer, template, query)
        return lambda document: Text(encode(document))

    return of_prompts


def scored(llm: "OpenModel", texts: Sequence[Text]) -> Stepwise[list[float]]:
    """What the model's head says of each text; or how much higher it scores "yes" than "no"."""
    found, engine = [0.0] * len(texts), llm.engine

    def note(number: int, score: float) -> None:
        if not np.isfinite(score):
            raise BackendError("a score is not a number: the model's weights are damaged, or of another kind")
        found[number] = score

    if isinstance(engine, EncoderEngine):
        yield from engine.read(texts, lambda number, scores: note(number, float(scores[0])), scores=True)
        return found
    head: NDArray[np.float64] | None = None  # computed in the engine's turn
    last = np.zeros(0)

    def take(chunk: NDArray[np.float32]) -> None:
        nonlocal head, last
        last = chunk[-1].astype(np.float64)
        head = _yes_less_no(llm) if head is None else head

    for number, text in enumerate(texts):
        yield from engine.hidden(text.tokens, take)
        assert head is not None
        note(number, float(last @ head))
        yield False
    return found


def _yes_less_no(llm: "OpenModel") -> NDArray[np.float64]:
    """By how much each number of a row speaks for "yes": float64 [width]."""
    config, weights = llm.config, llm.opened.worker.runner.weights
    if config.labels:
        rows = weights[CLASSIFIER].numpy()
    else:
        ids = llm.backend.tensor(np.array(answer_ids(llm.tokenizer), np.int32))
        rows = ops.embedding(ids, weights["embedding.weight" if config.tie_embeddings else "output.weight"]).numpy()
    yes, no = rows.astype(np.float64)
    return np.asarray((yes - no) * (config.scales.output / config.scales.logits))


def ranked(scores: Sequence[float], top_n: int | None, *, normalize: bool) -> list[Ranked]:
    """The best first, of equal ones the earlier; `normalize`: by the logistic function, between 0 and 1."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    return [Ranked(index, _logistic(scores[index]) if normalize else scores[index]) for index in order]


def _logistic(score: float) -> float:
    with np.errstate(over="ignore"):
        return float(1 / (1 + np.exp(-np.float64(score))))
