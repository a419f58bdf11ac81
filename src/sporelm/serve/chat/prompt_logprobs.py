"""Log probabilities of a prompt's own tokens, for `echo`."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.serve.chat.token_logprobs import TextLogprobs, finite
from sporelm.serve.model_pool.served_model import ServedModel

MAX_ROWS = 32  # whose probabilities are computed at once: those of a whole chunk would take some hundred MB


class PromptLogprobs(NamedTuple):
    """The log probabilities of each token of a prompt; the first one has none."""

    tokens: list[str]
    logprobs: list[float | None]
    top: list[dict[str, float] | None]

    def followed_by(self, answer: TextLogprobs) -> TextLogprobs:
        """Return these, followed by those of an answer."""
        offsets = []
        offset = 0
        for token in self.tokens:
            offsets.append(offset)
            offset += len(token)
        return TextLogprobs(
            self.tokens + answer.tokens,
            self.logprobs + answer.token_logprobs,
            self.top + answer.top_logprobs,
            offsets + answer.text_offset,
        )


async def prompt_logprobs(model: ServedModel, ids: list[int], num_top: int, adapter: str | None) -> PromptLogprobs:
    """Return the log probabilities of a prompt, with `num_top` alternatives each. Other requests go on meanwhile.

    Raises ContextOverflow, RequestError, MemoryShortage.
    """
    tokenizer = model.llm.tokenizer
    logprobs: list[float | None] = [None]
    top: list[dict[str, float] | None] = [None]

    def take(chunk: NDArray[np.float32]) -> None:
        for begin in range(0, len(chunk), MAX_ROWS):
            next_ids = ids[len(logprobs) : len(logprobs) + min(MAX_ROWS, len(chunk) - begin)]
            for row, token in zip(log_softmax(chunk[begin : begin + len(next_ids)]), next_ids, strict=True):
                logprobs.append(finite(row[token]))
                top.append(top_tokens(row, num_top, tokenizer.id_to_piece) if num_top else {})

    await model.async_llm.prompt_logits(ids, take, adapter)
    return PromptLogprobs(await asyncio.to_thread(tokenizer.pieces, ids), logprobs, top)


def top_tokens(row: NDArray[np.float32], count: int, piece_of: Callable[[int], str]) -> dict[str, float]:
    """Return the most likely tokens of one position, by their texts."""
    best = np.argpartition(row, -count)[-count:]
    best = best[np.argsort(-row[best], kind="stable")]
    return {piece_of(int(token)): finite(row[token]) for token in best}


def log_softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the log probabilities of each row: float32 [rows, vocab]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
