"""What a parser gives out: pieces of an answer, each of one kind."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model wrote for itself before or between what it says."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A tool call begins: calls are numbered from 0 in the order they begin, and never overlap."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """A piece of the JSON object of a call's arguments; the pieces of a call, joined, are valid JSON."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """A call has all of its arguments. `complete` is False if it was cut off or broke the format: what had come of the
    arguments was closed, so that they are valid JSON, but values may be missing or cut."""

    index: int
    complete: bool


Delta = Content | Reasoning | CallBegun | Arguments | CallEnded


@dataclass
class Call:
    """A whole tool call; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = True


@dataclass
class Reply:
    """A whole answer, taken apart."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> "Reply":
        """Take deltas in, in their order. Changes the reply and returns it."""
        for delta in deltas:
            if isinstance(delta, Content):
                self.content += delta.text
            elif isinstance(delta, Reasoning):
                self.reasoning += delta.text
            elif isinstance(delta, CallBegun):
                self.calls.append(Call(delta.id, delta.name))
            elif isinstance(delta, Arguments):
                self.calls[delta.index].arguments += delta.text
            else:
                self.calls[delta.index].complete = delta.complete
        return self
