"""A completion assembled from the events of a stream, with the timings that the user saw."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.cli.chat_sessions import ReasoningPiece
from sporelm.cli.remote.error_responses import extract_message
from sporelm.cli.terminal_text import pluralize
from sporelm.errors import RemoteError, safe_repr

DONE = "[DONE]"
MAX_ANSWER_CHARS = 16 << 20  # including reasoning
MIN_RATE_SECONDS = 0.01  # minimum time between the first and the last piece for a meaningful rate
REASONING_FIELDS = ("reasoning_content", "reasoning")  # vLLM, llama.cpp and Sporelm; Ollama and OpenRouter


@dataclass
class RemoteCompletion:
    """The completion so far.

    started_at        clock time of the request, in seconds
    texts             pieces of the answer, without reasoning
    finish_reason     the server's reason for the end; None before the end
    usage             token counts, if the server sent them
    first_at, last_at clock time of the first and the last piece
    num_pieces        pieces of text and reasoning
    num_chars         characters of text and reasoning
    """

    started_at: float = field(default_factory=time.monotonic)
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: None = None  # a failed completion raises instead
    usage: dict[str, int] = field(default_factory=dict)
    first_at: float = 0.0
    last_at: float = 0.0
    num_pieces: int = 0
    is_done: bool = False
    num_chars: int = 0

    @property
    def text(self) -> str:
        """The answer without reasoning."""
        return "".join(self.texts)

    @property
    def is_complete(self) -> bool:
        """Whether the answer has ended. After the finish reason only statistics follow, which may be missing."""
        return self.is_done or self.finish_reason is not None

    def add_event(self, event: str) -> Iterator["RemotePiece | ReasoningPiece"]:
        """Yield the pieces of an event. Raises RemoteError for an error event, and for an invalid one."""
        if event.strip() == DONE:
            self.is_done = True
            return
        try:
            chunk = json.loads(event)
        except (ValueError, RecursionError):
            raise RemoteError(f"the server's stream is not a chat: {safe_repr(event)} is not JSON") from None
        if not isinstance(chunk, dict):
            raise RemoteError(f"the server's stream is not a chat: {safe_repr(event)} is not an object")
        if chunk.get("error"):
            raise RemoteError(f"the server's answer failed: {extract_message(chunk)}")
        if isinstance(chunk.get("usage"), dict):
            self.usage = parse_usage(chunk["usage"])
        for choice in chunk.get("choices") or []:
            if not isinstance(choice, dict):
                raise RemoteError(f"the server's stream is not a chat: {safe_repr(choice)} is not a choice")
            if choice.get("index") in (None, 0):
                yield from self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> Iterator["RemotePiece | ReasoningPiece"]:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise RemoteError(f"the server's stream is not a chat: {safe_repr(delta)} is not a delta")
        reasoning = next((text for name in REASONING_FIELDS if (text := self._read_text(delta, name))), "")
        if reasoning:
            yield ReasoningPiece(reasoning)
        for name in ("content", "refusal"):
            if text := self._read_text(delta, name):
                self.texts.append(text)
                yield RemotePiece(text)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])[:40]

    def _read_text(self, delta: dict[str, Any], name: str) -> str:
        """Return a text of a delta, with lone surrogates replaced, and count it."""
        text = delta.get(name) or ""
        if not isinstance(text, str):
            raise RemoteError(f"the server sent {safe_repr(text)} as {name}: a string is expected")
        if text:
            self.num_chars += len(text)
            if self.num_chars > MAX_ANSWER_CHARS:
                raise RemoteError(f"the answer has more than {MAX_ANSWER_CHARS} characters: it is discarded")
            self.last_at = time.monotonic()
            self.first_at = self.first_at or self.last_at
            self.num_pieces += 1
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_usage(usage: dict[str, Any]) -> dict[str, int]:
    """Return the valid token counts of a `usage` object, including `cached_tokens` of its details."""
    details = usage.get("prompt_tokens_details")
    counts = {**(details if isinstance(details, dict) else {}), **usage}
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {name: counts[name] for name in names if type(counts.get(name)) is int and 0 <= counts[name] < 1 << 53}


def format_stats(completion: RemoteCompletion | None) -> str:
    """Return the line below an answer: tokens, rate, time to first token, cached tokens, an unusual finish reason."""
    if completion is None:
        return "stopped"
    num_tokens = completion.usage.get("completion_tokens")
    count = completion.num_pieces if num_tokens is None else num_tokens
    word, unit = ("piece", "pieces/s") if num_tokens is None else ("token", "tok/s")  # a piece may be several tokens
    parts = [pluralize(count, word)]
    if count > 1 and completion.last_at - completion.first_at >= MIN_RATE_SECONDS:
        parts[0] += f", {(count - 1) / (completion.last_at - completion.first_at):.1f} {unit}"
    if completion.first_at:
        parts.append(f"first after {completion.first_at - completion.started_at:.2f} s")
    usage = completion.usage
    if "cached_tokens" in usage and "prompt_tokens" in usage:
        parts.append(f"{usage['cached_tokens']} of {usage['prompt_tokens']} in the prompt cached")
    elif "prompt_tokens" in usage:
        parts.append(f"{usage['prompt_tokens']} in the prompt")
    if completion.finish_reason not in ("stop", None):
        parts.append(completion.finish_reason)
    return " | ".join(parts)


class RemotePiece(NamedTuple):
    """A piece of the answer; empty if nothing came for a moment. The last piece has the whole completion."""

    text: str
    completion: RemoteCompletion | None = None
