"""Cuts a text into the windows that are scored, as llama.cpp's llama-perplexity does, so that figures compare.

The windows are those of `text.windows`, of 512 tokens each. Positions 256 to 510 are scored on the token that
follows each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ContextOverflow, RequestError
from sporelm.text.token_windows import TextEncoder, split_into_windows

WINDOW = 512
FIRST_SCORED = WINDOW // 2


class ScoredModel(Protocol):
    """The scored model; `LLM` implements it."""

    @property
    def tokenizer(self) -> TextEncoder: ...

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Scores of the next token at every position: float32 [tokens, vocab]."""


@dataclass(frozen=True)
class ScoringWindows:
    """Token ids by window, and how many tokens the text had."""

    ids: tuple[tuple[int, ...], ...]
    tokens: int

    def targets(self) -> Iterator[tuple[list[int], NDArray[np.int64]]]:
        """Each window's ids, and the tokens that its scored positions should predict: int64 [255]."""
        for ids in self.ids:
            yield list(ids), np.array(ids[FIRST_SCORED + 1 :], np.int64)

    @property
    def scored(self) -> int:
        """Positions that are scored, in all windows."""
        return len(self.ids) * (WINDOW - 1 - FIRST_SCORED)


def cut_windows(tokenizer: TextEncoder, text: str, max_tokens: int | None = None) -> ScoringWindows:
    """The windows of a text (of its first `max_tokens` tokens). Raises RequestError for less than one window."""
    return ScoringWindows(*split_into_windows(tokenizer, text, WINDOW, max_tokens))


def compute_log_probabilities(scorer: ScoredModel, ids: list[int]) -> NDArray[np.float64]:
    """Log-probabilities at the scored positions of a window: float64 [255, vocab], in nat. Raises RequestError for a
    model whose context holds no window."""
    try:
        scores = scorer.logits(ids)[FIRST_SCORED:-1].astype(np.float64)
    except ContextOverflow as reason:
        remedy = f"raise the option max_context to {WINDOW} or more" if reason.larger else "take a model that has one"
        raise RequestError(
            f"texts are scored in windows of {WINDOW} tokens, and the context holds no window: {remedy}"
        ) from None
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores
