"""How an answer's text is read: the one place where a model's dialect is applied."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sporelm.api.answer import Answer
from sporelm.api.llm import LLM
from sporelm.errors import RequestError


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class CallBegun:
    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    index: int
    text: str


Delta = Content | Reasoning | CallBegun | Arguments


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str = ""


@dataclass
class Reply:
    """A whole answer, taken apart."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> "Reply":
        """Take deltas in, in their order. Changes the reply and returns it."""
        for delta in deltas:
            if isinstance(delta, Content):
                self.content += delta.text
            elif isinstance(delta, Reasoning):
                self.reasoning += delta.text
            elif isinstance(delta, CallBegun):
                self.calls.append(ToolCall(delta.id, delta.name))
            else:
                self.calls[delta.index].arguments += delta.text
        return self


class Parser:
    """Reads an answer in which all text is for the reader."""

    def push(self, text: str) -> list[Delta]:
        """What follows from some more text."""
        return [Content(text)]

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the text."""
        return []


class Reading:
    """How the answers to one chat are read; `prompt` is the end of what the model was shown."""

    def __init__(
        self, llm: LLM, tools: Sequence[Mapping[str, Any]] | None, choice: Any, *, parallel: bool = True
    ) -> None:
        """Raises RequestError for tools or a choice that cannot be."""
        self.prompt = ""
        if tools:
            raise RequestError("tools are not read out of answers yet: leave them out")
        self.wants_tools = False
        self.constrains = False

    def constraint(self) -> dict[str, Any]:
        """Fields of `SamplingParams` that hold the answer to the tools that must be called."""
        return {}

    def show(self, answer: Answer) -> None:
        """Have an answer's text show the special tokens that are marks of the dialect."""

    def parser(self) -> Parser:
        """A parser of one answer."""
        return Parser()
