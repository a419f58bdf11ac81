"""An answer put together from the events of a stream, with its figures as the user saw them."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.cli.plain_text import counted
from sporelm.cli.remote.refusals import told
from sporelm.cli.sessions import Thought
from sporelm.errors import RemoteError, shown

DONE = "[DONE]"
LONGEST_ANSWER = 16 << 20  # characters, thoughts included
SHORTEST = 0.01  # seconds between the first and the last piece from which on a rate says something
THOUGHTS = ("reasoning_content", "reasoning")  # as vLLM, llama.cpp and Sporelm have it; as Ollama and OpenRouter do


@dataclass
class RemoteAnswer:
    """What came so far.

    finish_reason    why it ended, in the server's word; None: it has not
    usage            token counts, if the server told them
    began            seconds of a clock, when it was asked for
    first, last      when its first and last piece came
    pieces           pieces of text and thoughts
    """

    began: float = field(default_factory=time.monotonic)
    said: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: None = None  # a failed answer is raised instead
    usage: dict[str, int] = field(default_factory=dict)
    first: float = 0.0
    last: float = 0.0
    pieces: int = 0
    done: bool = False
    size: int = 0

    @property
    def text(self) -> str:
        """The answer without thoughts."""
        return "".join(self.said)

    @property
    def is_whole(self) -> bool:
        """Whether it came to an end. What comes after the reason of the end are figures, which may be missing."""
        return self.done or self.finish_reason is not None

    def take(self, event: str) -> Iterator["Piece | Thought"]:
        """What an event adds. Raises RemoteError for an error that it tells, and for one that is none of a chat."""
        if event.strip() == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(event)
        except (ValueError, RecursionError):
            raise RemoteError(f"the server's stream is no chat: {shown(event)} is not JSON") from None
        if not isinstance(chunk, dict):
            raise RemoteError(f"the server's stream is no chat: {shown(event)} is no object")
        if chunk.get("error"):
            raise RemoteError(f"the server's answer failed: {told(chunk)}")
        if isinstance(chunk.get("usage"), dict):
            self.usage = usage_of(chunk["usage"])
        for choice in chunk.get("choices") or []:
            if not isinstance(choice, dict):
                raise RemoteError(f"the server's stream is no chat: {shown(choice)} is no choice")
            if choice.get("index") in (None, 0):
                yield from self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> Iterator["Piece | Thought"]:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise RemoteError(f"the server's stream is no chat: {shown(delta)} is no delta")
        thought = next((text for name in THOUGHTS if (text := self._text(delta, name))), "")
        if thought:
            yield Thought(thought)
        for name in ("content", "refusal"):
            if text := self._text(delta, name):
                self.said.append(text)
                yield Piece(text)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])[:40]

    def _text(self, delta: dict[str, Any], name: str) -> str:
        """A text of a delta, halves of characters replaced; counts it."""
        text = delta.get(name) or ""
        if not isinstance(text, str):
            raise RemoteError(f"the server sent {shown(text)} as {name}: a text is expected")
        if text:
            self.size += len(text)
            if self.size > LONGEST_ANSWER:
                raise RemoteError(f"the answer has more than {LONGEST_ANSWER} characters: it was given up")
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.pieces += 1
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def usage_of(found: dict[str, Any]) -> dict[str, int]:
    """The counts of a `usage` that are counts; `cached_tokens` out of its details."""
    details = found.get("prompt_tokens_details")
    told = {**(details if isinstance(details, dict) else {}), **found}
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {name: told[name] for name in names if type(told.get(name)) is int and 0 <= told[name] < 1 << 53}


def figures(answer: RemoteAnswer | None) -> str:
    """What stands under an answer: tokens, speed, time to the first, cached tokens, an unusual end."""
    if answer is None:
        return "stopped"
    count = answer.usage.get("completion_tokens")
    number = answer.pieces if count is None else count
    word, rate = ("piece", "pieces/s") if count is None else ("token", "tok/s")  # a piece may be several tokens
    parts = [counted(number, word)]
    if number > 1 and answer.last - answer.first >= SHORTEST:
        parts[0] += f", {(number - 1) / (answer.last - answer.first):.1f} {rate}"
    if answer.first:
        parts.append(f"first after {answer.first - answer.began:.2f} s")
    if "cached_tokens" in answer.usage and "prompt_tokens" in answer.usage:
        parts.append(f"{answer.usage['cached_tokens']} of {answer.usage['prompt_tokens']} in the prompt cached")
    elif "prompt_tokens" in answer.usage:
        parts.append(f"{answer.usage['prompt_tokens']} in the prompt")
    if answer.finish_reason not in ("stop", None):
        parts.append(answer.finish_reason)
    return " | ".join(parts)


class Piece(NamedTuple):
    """What came of an answer; nothing, where a moment passed without. The last piece has the whole answer."""

    text: str
    completion: RemoteAnswer | None = None
