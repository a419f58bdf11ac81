"""A chat request as every API means it: messages in, answers out, as text, reasoning and tool calls.

Each API translates its words into a `ChatAsk`, and the `Said`s of a `Chat` into its own; nothing else differs.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.api.completion import Completion, Piece
from sporelm.api.llm import LLM
from sporelm.api.params import SamplingParams
from sporelm.errors import ModelFileError, RequestError, shown
from sporelm.serve.answering import AnswerStream, answers_to, in_thread_if, merged
from sporelm.serve.endpoint import Call
from sporelm.serve.models import ServedModel
from sporelm.serve.reading import CallBegun, Delta, Reading, Reply
from sporelm.serve.sampling import room_for
from sporelm.serve.usage import Usage, check_finished, usage_of
from sporelm.text import ChatTemplate

LARGE = 8192  # characters of messages from which on a thread renders and encodes them
# Variables that a request may set in a template, with their types: others could change what a template does with what
# is not the caller's.
VARIABLES: dict[str, type | tuple[type, ...]] = {
    "enable_thinking": bool,
    "thinking": bool,
    "reasoning_effort": str,
    "thinking_budget": int,
    "date_string": str,
    "builtin_tools": list,
}


@dataclass(frozen=True, kw_only=True)
class ChatAsk:
    """What is asked.

    sampling      fields of `SamplingParams`, without max_tokens and salt
    max_tokens    of each answer; None: what the context has room for
    tools         functions that may be called, as OpenAI's API writes them
    tool_choice   as OpenAI's API writes it; None: the model decides
    variables     of the template, of those in VARIABLES
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    parallel: bool = True
    variables: Mapping[str, Any] | None = None


class Said(NamedTuple):
    """Something new of one of the answers; the last one of each has its completion."""

    number: int
    deltas: list[Delta]
    piece: Piece


class Answered(NamedTuple):
    """A whole answer."""

    reply: Reply
    completion: Completion
    finish_reason: str  # stop, length or tool_calls


class Chat:
    """Answers on their way."""

    def __init__(self, model: ServedModel, streams: list[AnswerStream], reading: Reading) -> None:
        self.model, self.streams = model, streams
        self.readers = [reading.parser() for _ in streams]
        self.completions: list[Completion | None] = [None] * len(streams)
        self.called = [False] * len(streams)  # whether a tool was

    async def said(self) -> AsyncGenerator[Said, None]:
        """Everything, as it comes. Raises Refusal for an answer that fails, BackendError."""
        async for number, piece in merged(self.streams):
            reader = self.readers[number]
            deltas = reader.push(piece.text) if piece.text else []
            if piece.completion is not None:
                check_finished(piece.completion, constrained=self.streams[number].constrained)
                self.completions[number] = piece.completion
                deltas = [*deltas, *reader.finish()]
            if any(isinstance(delta, CallBegun) for delta in deltas):
                self.called[number] = True
            if deltas or piece.token_ids or piece.completion is not None:
                yield Said(number, deltas, piece)

    def finish_reason(self, number: int) -> str:
        """Why an answer ended: stop, length or tool_calls."""
        completion = self.completions[number]
        assert completion is not None
        if completion.finish_reason == "stop" and self.called[number]:
            return "tool_calls"
        return completion.finish_reason

    @property
    def usage(self) -> Usage:
        """Of all answers, once they have ended."""
        return usage_of([[each for each in self.completions if each is not None]])

    async def whole(self) -> list[Answered]:
        """All answers, when the last one has ended."""
        replies = [Reply() for _ in self.streams]
        async for said in self.said():
            replies[said.number].add(said.deltas)
        done = [each for each in self.completions if each is not None]
        return [Answered(replies[at], each, self.finish_reason(at)) for at, each in enumerate(done)]


async def begin_chat(call: Call, model: ServedModel, ask: ChatAsk) -> Chat:
    """Have the engine take a chat. Raises RequestError, ContextOverflow, QueueFull, ModelFileError."""
    llm = model.llm.llm
    reading = Reading(llm, ask.tools, ask.tool_choice, parallel=ask.parallel)
    text = await rendered(llm, ask.messages, tools=ask.tools if reading.wants_tools else None, variables=ask.variables)
    reading.prompt = text[-256:]
    large = len(text) > LARGE or ask.sampling.get("grammar") is not None or reading.constrains

    def prepare() -> list[Any]:
        ids = llm.chat_ids(text)
        params = SamplingParams(
            **{
                **ask.sampling,
                **reading.constraint(),
                "max_tokens": room_for(llm.max_context, len(ids), ask.max_tokens),
                "salt": call.key.salt,
            }
        )
        found = answers_to(llm, ids, params, continues=False)
        for each in found:
            reading.show(each)
        return found

    answers = await in_thread_if(large, prepare)
    return Chat(model, await call.begin(model, answers), reading)


async def rendered(
    llm: LLM,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """Messages as the model is shown them. Raises RequestError, also where its template fails at them."""
    known = allowed(variables or {})
    given = [{**each, "role": "system"} if each.get("role") == "developer" else each for each in messages]
    template = ChatTemplate.of(llm.tokenizer, tools=True) if tools else llm.template

    def render() -> str:
        return template.render(given, add_generation_prompt=add_generation_prompt, tools=tools, **known)

    try:
        return await in_thread_if(sum(len(str(each.get("content"))) for each in given) > LARGE, render)
    except ModelFileError as reason:  # the template is the model's, but what it fails at is the caller's
        raise RequestError(str(reason)) from None


def allowed(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a template. Raises RequestError for one that a request may not set."""
    for name, value in variables.items():
        if name not in VARIABLES:
            raise RequestError(f"the template variable {shown(name)} may not be set: there are {', '.join(VARIABLES)}")
        if not isinstance(value, VARIABLES[name]) or (VARIABLES[name] is int and isinstance(value, bool)):
            raise RequestError(f"the template variable {name} is {shown(value)}, which is of the wrong type")
    return dict(variables)
