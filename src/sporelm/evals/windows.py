"""Cuts a text into the windows that are scored, as llama.cpp's llama-perplexity does, so that figures compare.

The text is encoded whole; each run of 512 tokens is a window of its own. Where the tokenizer begins a text with BOS,
that takes the place of each window's first token. Positions 256 to 510 are scored on the token that follows each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError

WINDOW = 512
FIRST_SCORED = WINDOW // 2


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]: ...


class Scorer(Protocol):
    """What is scored; `LLM` offers it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Scores of the next token at every position: float32 [tokens, vocab]."""


@dataclass(frozen=True)
class Windows:
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


def cut(tokenizer: Tokenizer, text: str, max_tokens: int | None = None) -> Windows:
    """The windows of a text (of its first `max_tokens` tokens). Raises RequestError for less than one window."""
    ids = tokenizer.encode(text, add_special_tokens=True, parse_special=False)[:max_tokens]
    if len(ids) < WINDOW:
        raise RequestError(
            f"{len(ids)} tokens are too few: at least one window of {WINDOW} is scored; give a longer text"
        )
    bos = begin_token(tokenizer)
    windows = []
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[start : start + WINDOW]
        windows.append(tuple(window if bos is None else [bos, *window[1:]]))
    return Windows(tuple(windows), len(ids))


def begin_token(tokenizer: Tokenizer) -> int | None:
    """The token that the tokenizer puts before a text, or None."""
    with_special = tokenizer.encode("a", add_special_tokens=True, parse_special=False)
    plain = tokenizer.encode("a", add_special_tokens=False, parse_special=False)
    return with_special[0] if with_special[:1] != plain[:1] else None


def scored_log_probabilities(scorer: Scorer, ids: list[int]) -> NDArray[np.float64]:
    """Log-probabilities at the scored positions of a window: float64 [255, vocab], in nat."""
    scores = scorer.logits(ids)[FIRST_SCORED:-1].astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores
