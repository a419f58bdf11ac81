"""Deltas, the output of a parser: pieces of an answer, each of one kind."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text of the model's reasoning, before or between content."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The beginning of a tool call. Calls are numbered from 0 in the order of their beginnings, and never overlap."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """A piece of the JSON object of a call's arguments; the pieces of a call, joined, are valid JSON."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """The end of a call's arguments. `complete` is False if the call was cut off or broke the format: its arguments
    were closed, so that they are valid JSON, but values may be missing or cut."""

    index: int
    complete: bool


Delta = Content | Reasoning | CallStart | Arguments | CallEnd


@dataclass
class ToolCall:
    """A whole tool call; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = True


@dataclass
class Reply:
    """A whole answer, separated into content, reasoning and calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> "Reply":
        """Add deltas in their order. Changes the reply and returns it."""
        for delta in deltas:
            if isinstance(delta, Content):
                self.content += delta.text
            elif isinstance(delta, Reasoning):
                self.reasoning += delta.text
            elif isinstance(delta, CallStart):
                self.calls.append(ToolCall(delta.id, delta.name))
            elif isinstance(delta, Arguments):
                self.calls[delta.index].arguments += delta.text
            else:
                self.calls[delta.index].complete = delta.complete
        return self
