"""What dialects share: the loop over an answer's content, its reasoning and its calls."""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sporelm.errors import RequestError
from sporelm.text.dialects.deltas import Call, Delta
from sporelm.text.dialects.source import Source, Steps
from sporelm.text.dialects.tool import Tool, tools_of
from sporelm.text.dialects.writer import Writer

if TYPE_CHECKING:
    from sporelm.text.dialects.forms import Expression, Forms
    from sporelm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Thinking:
    """How reasoning is marked.

    open, close    the marks around it
    anywhere       whether it may come after content: where `open` is no text that an answer could speak about
    answer         the marks around what is said after it, of models that mark that too
    """

    open: str
    close: str
    anywhere: bool = False
    answer: tuple[str, ...] = ()


THINK = Thinking("<think>", "</think>")
RESPONSE = ("<response>", "</response>")


class Turn:
    """One answer while it is read."""

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[], str]) -> None:
        self.source = Source()
        self.out = Writer(new_id)
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.thought = False  # the prompt has ended the reasoning
        self.answering = False  # the mark has come that begins what is said after reasoning

    def begin(self, name: str, id: str | None = None) -> None:
        """A call begins: what was read of it will not be given back as content."""
        self.source.release()
        self.source.in_call = True
        self.out.begin_call(name, id)

    def attempt(self, call: Steps[bool], mark: str = "") -> Steps[bool]:
        """Read what may be a call, after its mark. If it is none, all that was read, and the mark, is content."""
        place = self.source.hold(len(mark))
        found = yield from call
        if not found:
            self.out.content(self.source.since(place))
        self.source.release()
        self.source.in_call = False
        return found


class Parser:
    """Takes an answer's text in pieces of any size; gives out what is certain. One parser serves one answer."""

    def __init__(self, turn: Turn, steps: Steps[None]) -> None:
        self._turn, self._steps = turn, steps
        self._ended = False

    @property
    def reasons(self) -> bool:
        """Whether what was pushed last ended inside of reasoning."""
        return self._turn.out.reasons

    def push(self, text: str) -> list[Delta]:
        """What follows from some more text. Raises RequestError after `finish`."""
        if self._ended:
            raise RequestError("this answer was finished: begin a new parser")
        self._turn.source.append(text)
        next(self._steps, None)
        return self._turn.out.drain()

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the text. A second time there is nothing."""
        if not self._ended:
            self._ended = self._turn.source.ended = True
            for _ in self._steps:  # at the end nothing waits for more
                pass
            self._turn.out.finish()
        return self._turn.out.drain()


class Dialect(ABC):
    """A way to write reasoning and tool calls into an answer; without state, safe to share.

    A subclass says which marks begin a call, and reads one. A call begins when its name is known. What turns out to be
    no call before that is content, mark and all. A call that breaks its format, or is cut off, after it began keeps
    what it has of its arguments, closed; what follows the place where it broke is content.
    """

    name: ClassVar[str]
    marks: tuple[str, ...] = ()  # every mark of the format; some may be special tokens
    begins: tuple[str, ...] = ()  # those that begin a call
    frames: tuple[str, ...] = ()  # those around what is said: they mean nothing more
    thinking: Thinking | None

    def __init__(self, thinking: Thinking | None = THINK) -> None:
        self.thinking = thinking

    def parser(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: str = "",
        new_id: Callable[[], str] | None = None,
    ) -> Parser:
        """A parser of one answer.

        tools     what may be called; without any, calls are not looked for. Give none for tool_choice "none"
        prompt    the end of what the template rendered: it may have begun the reasoning
        new_id    makes an id for each call

        Raises RequestError for malformed tools.
        """
        turn = Turn(tools_of(tools), new_id or self.new_id)
        turn.thought = self.thinking is not None and prompt.rstrip().endswith(self.thinking.close)
        return Parser(turn, self.steps(turn, self.thinks_after(prompt)))

    def shown_ids(self, tokenizer: "Tokenizer") -> frozenset[int]:
        """Special tokens whose text the parser must see: a detokenizer that skips special tokens must keep these."""
        return frozenset(self.special_marks(tokenizer).values()) - tokenizer.special.stop_ids

    def special_marks(self, tokenizer: "Tokenizer") -> dict[str, int]:
        """The special tokens of which marks are made, wholly or in part: text -> id."""
        marks = self.all_marks()
        pieces = {tokenizer.id_to_piece(token): token for token in sorted(tokenizer.special.control)}
        return {text: token for text, token in pieces.items() if text and any(text in mark for mark in marks)}

    def all_marks(self) -> tuple[str, ...]:
        """The marks of calls and of reasoning."""
        thinking = (self.thinking.open, self.thinking.close, *self.thinking.answer) if self.thinking else ()
        return (*self.marks, *self.frames, *thinking)

    def thinks_after(self, prompt: str) -> bool:
        """Whether a prompt ends inside of reasoning."""
        return self.thinking is not None and prompt.rstrip().endswith(self.thinking.open)

    def reasons_in(self, template: str) -> bool:
        """Whether a model's template speaks of reasoning."""
        return self.thinking is not None and self.thinking.open in template

    def new_id(self) -> str:
        """An id for a call."""
        return f"call_{secrets.token_hex(12)}"

    def openers(self, turn: Turn) -> Iterable[str]:
        """The marks to look for in content, besides that of reasoning."""
        return self.begins if turn.tools else ()

    def steps(self, turn: Turn, thinks: bool) -> Steps[None]:
        """Read an answer; `thinks`: it begins inside of reasoning."""
        thinking = self.thinking
        if thinking and thinks:
            yield from self.reason(turn, thinking)
        answer = thinking.answer if thinking else ()
        marks = (*self.openers(turn), *self.frames, *answer, *((thinking.open,) if thinking else ()))
        while True:
            mark = yield from turn.source.until(marks, turn.out.content)
            if mark is None:
                return
            if mark in self.frames or (mark in answer and self._frames_answer(turn, mark == answer[0])):
                turn.out.block()
            elif mark in answer:
                turn.out.content(mark)
            elif thinking is None or mark != thinking.open:
                yield from turn.attempt(self.call(turn, mark), mark)
            elif thinking.anywhere or turn.out.blank:
                yield from self.reason(turn, thinking)
            else:
                turn.out.content(mark)

    @staticmethod
    def _frames_answer(turn: Turn, begins: bool) -> bool:
        """Whether a mark of `Thinking.answer` is one here: the first after reasoning, the second after the first."""
        if begins and (turn.answering or not turn.out.blank or not (turn.thought or turn.out.reasoned)):
            return False
        found = begins or turn.answering
        turn.answering = begins
        return found

    def reason(self, turn: Turn, thinking: Thinking) -> Steps[None]:
        """Read reasoning up to its end; a mark of its beginning may come once more, after that in the prompt."""
        turn.out.begin_reasoning()
        yield from turn.source.skip(thinking.open)
        yield from turn.source.until((thinking.close,), turn.out.reasoning)
        turn.out.block()

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        """Read a call, or several, after a mark of `begins`; False if there is none, as where there are no marks."""
        yield from ()
        return False

    def fitting_id(self, id: str) -> str:
        """An id that the model's template takes, the same for the same: other programs make ids of other forms."""
        return id

    def written(self, calls: Sequence[Call]) -> str:
        """Calls as the model writes them: for templates that do not, and to tell a model how."""
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)

    def framed(self, forms: "Forms", content: "Expression") -> "Expression":
        """Content of a given form as it stands in an answer that does not call."""
        return content

    @abstractmethod
    def forced(self, forms: "Forms") -> "Expression":
        """The form of a call of any of the tools, or of several, in llguidance's Lark."""
