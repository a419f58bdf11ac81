"""Log probabilities of a prompt's own tokens."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.api.llm import LLM
from sporelm.api.stepwise import Stepwise
from sporelm.serve.scores import TextLogprobs, real
from sporelm.serve.served_model import ServedModel

ROWS = 32  # whose probabilities are made at once: those of a whole chunk would take some hundred MB


class PromptScores(NamedTuple):
    """Of each token of a prompt; the first one has none."""

    tokens: list[str]
    logprobs: list[float | None]
    top: list[dict[str, float] | None]

    def joined(self, after: TextLogprobs) -> TextLogprobs:
        """These, and then an answer's."""
        offsets, at = [], 0
        for token in self.tokens:
            offsets.append(at)
            at += len(token)
        return TextLogprobs(
            self.tokens + after.tokens,
            self.logprobs + after.token_logprobs,
            self.top + after.top_logprobs,
            offsets + after.text_offset,
        )


async def prompt_scores(model: ServedModel, ids: list[int], top: int, adapter: str | None) -> PromptScores:
    """The scores of a prompt, with so many alternatives each, by the model with this adapter. Others' steps go on
    meanwhile; who leaves ends it.

    Raises ContextOverflow, RequestError, MemoryShortage.
    """
    return await model.llm.stepwise(scored(model.llm.llm, ids, top, adapter))


def scored(llm: LLM, ids: list[int], top: int, adapter: str | None) -> Stepwise[PromptScores]:
    """`prompt_scores`, step by step."""
    logprobs: list[float | None] = [None]
    others: list[dict[str, float] | None] = [None]

    def take(chunk: NDArray[np.float32]) -> None:
        for begin in range(0, len(chunk), ROWS):
            wanted = ids[len(logprobs) : len(logprobs) + min(ROWS, len(chunk) - begin)]
            for row, token in zip(log_softmax(chunk[begin : begin + len(wanted)]), wanted, strict=True):
                logprobs.append(real(row[token]))
                others.append(best_of(row, top, llm.tokenizer.id_to_piece) if top else {})

    yield from llm.engine.logits(ids, take, llm.adapters.number(adapter))
    return PromptScores(llm.tokenizer.pieces(ids), logprobs, others)


def best_of(row: NDArray[np.float32], count: int, piece: Callable[[int], str]) -> dict[str, float]:
    """The likeliest tokens of one position, by their texts."""
    best = np.argpartition(row, -count)[-count:]
    best = best[np.argsort(-row[best], kind="stable")]
    return {piece(int(token)): real(row[token]) for token in best}


def log_softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logarithms of probabilities, row by row: float32 [rows, vocab]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
