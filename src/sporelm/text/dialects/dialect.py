"""The base class of dialects: the loop over the content, the reasoning and the tool calls of an answer."""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sporelm.errors import RequestError
from sporelm.text.dialects.delta_writer import DeltaWriter
from sporelm.text.dialects.deltas import Delta, ToolCall
from sporelm.text.dialects.stream_source import Steps, TextSource
from sporelm.text.dialects.tool import Tool, parse_tools

if TYPE_CHECKING:
    from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
    from sporelm.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Thinking:
    """The markers of reasoning.

    open, close    the markers around it
    anywhere       whether it may come after content: if `open` is not a text that an answer could discuss
    answer         the markers around the answer after it, for models that write them
    """

    open: str
    close: str
    anywhere: bool = False
    answer: tuple[str, ...] = ()


THINK = Thinking("<think>", "</think>")
RESPONSE = ("<response>", "</response>")


class ParserState:
    """The state of the parser of one answer."""

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[], str]) -> None:
        self.source = TextSource()
        self.writer = DeltaWriter(new_id)
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.prompt_ended_reasoning = False
        self.answering = False  # the marker that begins the answer after reasoning was read

    def begin(self, name: str, id: str | None = None) -> None:
        """Begin a call: the text read for it will not become content."""
        self.source.release()
        self.source.in_call = True
        self.writer.begin_call(name, id)

    def attempt(self, call: Steps[bool], marker: str = "") -> Steps[bool]:
        """Parse a possible call after its marker. If it is not a call, the text read, with the marker, is content."""
        position = self.source.hold(len(marker))
        is_call = yield from call
        if not is_call:
            self.writer.content(self.source.since(position))
        self.source.release()
        self.source.in_call = False
        return is_call


class AnswerParser:
    """Parses an answer's text, in pieces of any size, and returns what is certain. One parser serves one answer."""

    def __init__(self, state: ParserState, steps: Steps[None]) -> None:
        self._state = state
        self._steps = steps
        self._is_finished = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the text pushed so far ends inside reasoning."""
        return self._state.writer.in_reasoning

    def push(self, text: str) -> list[Delta]:
        """Return the deltas of some more text. Raises RequestError after `finish`."""
        if self._is_finished:
            raise RequestError("this answer was finished: begin a new parser")
        self._state.source.append(text)
        next(self._steps, None)
        return self._state.writer.drain()

    def finish(self) -> list[Delta]:
        """Return the deltas held back at the end of the text; nothing the second time."""
        if not self._is_finished:
            self._is_finished = True
            self._state.source.ended = True
            for _ in self._steps:  # at the end no step waits for more text
                pass
            self._state.writer.finish()
        return self._state.writer.drain()


class Dialect(ABC):
    """A format of reasoning and tool calls in answers; without state, safe to share.

    A dialect is a tool-call parser and a reasoning parser in one, with the grammar that enforces calls. A subclass has
    the markers that begin a call, and parses one. A call begins when its name is known. Text that turns out not to be a
    call before that is content, with its marker. A call that breaks its format, or is cut off, after it began keeps the
    arguments read so far, closed; the text after that position is content.
    """

    name: ClassVar[str]
    markers: tuple[str, ...] = ()  # every marker of the format; some may be special tokens
    start_markers: tuple[str, ...] = ()  # of a call
    frame_markers: tuple[str, ...] = ()  # around content: they are dropped
    thinking: Thinking | None

    def __init__(self, thinking: Thinking | None = THINK) -> None:
        self.thinking = thinking

    def parser(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: str = "",
        new_id: Callable[[], str] | None = None,
    ) -> AnswerParser:
        """Return a parser of one answer.

        tools     the tools that may be called; without any, calls are not parsed. Give none for tool_choice "none"
        prompt    the end of the rendered prompt: it may have begun the reasoning
        new_id    makes an id for each call

        Raises RequestError for malformed tools.
        """
        state = ParserState(parse_tools(tools), new_id or self.new_id)
        state.prompt_ended_reasoning = self.thinking is not None and prompt.rstrip().endswith(self.thinking.close)
        return AnswerParser(state, self.parse(state, self.starts_in_reasoning(prompt)))

    def shown_ids(self, tokenizer: "Tokenizer") -> frozenset[int]:
        """Return the special tokens that a detokenizer which skips special tokens must keep for the parser."""
        return frozenset(self.special_markers(tokenizer).values()) - tokenizer.special.stop_ids

    def special_markers(self, tokenizer: "Tokenizer") -> dict[str, int]:
        """Return the special tokens that are markers or parts of them: text -> id."""
        markers = self.all_markers()
        pieces = {tokenizer.id_to_piece(token): token for token in sorted(tokenizer.special.control)}
        return {text: token for text, token in pieces.items() if text and any(text in marker for marker in markers)}

    def all_markers(self) -> tuple[str, ...]:
        """Return the markers of calls and of reasoning."""
        thinking = (self.thinking.open, self.thinking.close, *self.thinking.answer) if self.thinking else ()
        return (*self.markers, *self.frame_markers, *thinking)

    def starts_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends inside reasoning."""
        return self.thinking is not None and prompt.rstrip().endswith(self.thinking.open)

    def supports_reasoning(self, template: str) -> bool:
        """Whether a model's template has markers of reasoning."""
        return self.thinking is not None and self.thinking.open in template

    def new_id(self) -> str:
        """Return an id for a call."""
        return f"call_{secrets.token_hex(12)}"

    def openers(self, state: ParserState) -> Iterable[str]:
        """Return the markers to find in content, besides that of reasoning."""
        return self.start_markers if state.tools else ()

    def parse(self, state: ParserState, in_reasoning: bool) -> Steps[None]:
        """Parse an answer, which begins inside reasoning if `in_reasoning`."""
        thinking = self.thinking
        if thinking and in_reasoning:
            yield from self.parse_reasoning(state, thinking)
        answer = thinking.answer if thinking else ()
        markers = (*self.openers(state), *self.frame_markers, *answer, *((thinking.open,) if thinking else ()))
        while True:
            marker = yield from state.source.until(markers, state.writer.content)
            if marker is None:
                return
            if marker in self.frame_markers or (marker in answer and self._frames_answer(state, marker == answer[0])):
                state.writer.block()
            elif marker in answer:
                state.writer.content(marker)
            elif thinking is None or marker != thinking.open:
                yield from state.attempt(self.parse_call(state, marker), marker)
            elif thinking.anywhere or state.writer.is_blank:
                yield from self.parse_reasoning(state, thinking)
            else:
                state.writer.content(marker)

    @staticmethod
    def _frames_answer(state: ParserState, is_first: bool) -> bool:
        """Whether a marker of `Thinking.answer` counts here: the first after reasoning, the second after the first."""
        after_reasoning = state.prompt_ended_reasoning or state.writer.has_reasoned
        if is_first and (state.answering or not state.writer.is_blank or not after_reasoning):
            return False
        counts = is_first or state.answering
        state.answering = is_first
        return counts

    def parse_reasoning(self, state: ParserState, thinking: Thinking) -> Steps[None]:
        """Parse reasoning up to its end; its opening marker may be repeated after that in the prompt."""
        state.writer.begin_reasoning()
        yield from state.source.skip(thinking.open)
        yield from state.source.until((thinking.close,), state.writer.reasoning)
        state.writer.block()

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        """Parse one call or several after one of `start_markers`; False if the text is not a call."""
        yield from ()
        return False

    def normalize_call_id(self, id: str) -> str:
        """Return an id that the model's template accepts, the same for the same: other programs use other formats."""
        return id

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        """Return calls as the model writes them: for templates without tool calls, and for instructions to a model."""
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)

    def wrap_content(self, lark: "LarkBuilder", content: "Expression") -> "Expression":
        """Return the rule of an answer without calls whose content follows a rule."""
        return content

    @abstractmethod
    def build_calls(self, lark: "LarkBuilder") -> "Expression":
        """Return the rule, in llguidance's Lark, of a call of any of the tools, or of several calls."""
