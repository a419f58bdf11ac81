"""The progress and statistics of an answer of the web chat."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]


class Progress(NamedTuple):
    """An increment of an answer. Counts are those of the whole request so far.

    status      before the first token: "loading", "busy" or "waiting"; `others` is the number of queued requests
    retry       seconds until a busy model is tried again
    finish      the finish reason, in the last increment
    """

    content: str = ""
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    tokens_per_s: float = 0.0
    finish: str | None = None
    status: str | None = None
    others: int = 0
    retry: float = 0.0


class AnswerStats:
    """Measures an answer; for a continued one, `earlier` has the statistics of its first part."""

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self.earlier = {name: value for name, value in earlier.items() if type(value) in (int, float)}
        self.started_at = time.monotonic()
        self.first_token_at = 0.0
        self.last_token_at = 0.0
        self.latest: Progress | None = None  # with counts

    def add(self, progress: Progress) -> None:
        """Add an increment."""
        if progress.content or progress.reasoning:
            self.last_token_at = time.monotonic()
            self.first_token_at = self.first_token_at or self.last_token_at
        if progress.prompt_tokens:
            self.latest = progress

    def stats(self) -> Json:
        """Return completion_tokens, first_token_s, tokens_per_s, prompt_tokens and cached_tokens, as far as known."""
        earlier_tokens = int(self.earlier.get("completion_tokens", 0))
        latest = self.latest
        num_tokens = latest.completion_tokens if latest is not None else 0
        seconds = self.last_token_at - self.first_token_at
        stats: Json = {"completion_tokens": earlier_tokens + num_tokens}
        if self.first_token_at or "first_token_s" in self.earlier:
            measured = round(self.first_token_at - self.started_at, 4)
            stats["first_token_s"] = self.earlier.get("first_token_s", measured)
        if latest is not None and latest.tokens_per_s:
            stats["tokens_per_s"] = latest.tokens_per_s
        elif num_tokens > 1 and seconds > 0.05:
            stats["tokens_per_s"] = round((num_tokens - 1) / seconds, 2)
        elif not num_tokens and "tokens_per_s" in self.earlier:
            stats["tokens_per_s"] = self.earlier["tokens_per_s"]
        if latest is not None:
            stats["prompt_tokens"] = max(0, latest.prompt_tokens - earlier_tokens)
            stats["cached_tokens"] = min(latest.cached_tokens, stats["prompt_tokens"])
        elif "prompt_tokens" in self.earlier:
            stats |= {name: self.earlier.get(name, 0) for name in ("prompt_tokens", "cached_tokens")}
        return stats
