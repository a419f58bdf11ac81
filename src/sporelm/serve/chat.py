"""A chat request as every API means it: messages in, answers out, as text, reasoning and tool calls.

Each API translates its words into a `ChatAsk`, and the `Said`s of a `Chat` into its own; nothing else differs.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.api.answer import Answer
from sporelm.api.completion import Completion, Piece
from sporelm.api.isolation import render_apart
from sporelm.api.params import SamplingParams
from sporelm.errors import ModelFileError, RequestError
from sporelm.serve.answering import AnswerStream, in_thread_if, merged
from sporelm.serve.endpoint import LARGE, Call
from sporelm.serve.reading import CallBegun, Delta, Reading, Reasoning, Reply, check_variables, text_of
from sporelm.serve.served_model import ServedModel
from sporelm.serve.usage import Usage, check_finished, usage_of
from sporelm.text import RenderedPrompt
from sporelm.text.messages import with_known_roles


@dataclass(frozen=True, kw_only=True)
class ChatAsk:
    """What is asked.

    sampling      fields of `SamplingParams`, without max_tokens and salt
    max_tokens    of each answer; None: what the context has room for
    tools         functions that may be called, as OpenAI's API writes them
    tool_choice   as OpenAI's API writes it; None: the model decides
    variables     of the template, of those that `check_variables` takes
    before        ids of what was said before, from which the messages go on
    goes_on       whether the answer goes on with the last message, the assistant's, instead of beginning a new one
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    parallel: bool = True
    variables: Mapping[str, Any] | None = None
    before: Sequence[int] = ()
    goes_on: bool = False


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
        self.thought = [0] * len(streams)  # tokens of reasoning, its marks included

    async def said(self) -> AsyncGenerator[Said, None]:
        """Everything, as it comes. Raises Refusal for an answer that fails, BackendError."""
        async for number, piece in merged(self.streams):
            reader = self.readers[number]
            reasoned = reader.reasons
            deltas = reader.push(piece.text) if piece.text else []
            if piece.completion is not None:
                check_finished(piece.completion, constrained=self.streams[number].constrained)
                self.completions[number] = piece.completion
                deltas = [*deltas, *reader.finish()]
            for delta in deltas:
                if isinstance(delta, CallBegun):
                    self.called[number] = True
                elif isinstance(delta, Reasoning):
                    reasoned = True
            if reasoned or reader.reasons:
                self.thought[number] += len(piece.token_ids)
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
        return usage_of([[each for each in self.completions if each is not None]], sum(self.thought))

    async def whole(self) -> list[Answered]:
        """All answers, when the last one has ended."""
        replies = [Reply() for _ in self.streams]
        async for said in self.said():
            replies[said.number].add(said.deltas)
        done = [each for each in self.completions if each is not None]
        return [Answered(replies[at], each, self.finish_reason(at)) for at, each in enumerate(done)]


def goes_on(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the assistant has begun an answer, which the APIs of Anthropic and Ollama go on with."""
    return bool(messages) and bool(text_of(messages[-1]))


async def begin_chat(call: Call, model: ServedModel, ask: ChatAsk) -> Chat:
    """Have the engine take a chat. Raises RequestError, ContextOverflow, QueueFull."""
    call.check_size(len(ask.messages), ask.max_tokens)
    llm = model.llm.llm
    reading = await in_thread_if(call.large, lambda: Reading(llm, ask.tools, ask.tool_choice, parallel=ask.parallel))
    prompt = await rendered(call, reading, ask.messages, ask.variables, goes_on=ask.goes_on)

    grammar = ask.sampling.get("grammar")
    in_form = grammar is not None or bool(ask.tools)
    forced = await in_thread_if(call.large or in_form, lambda: reading.constraint(grammar))
    await model.llm.isolation.try_grammar(forced.get("grammar", grammar))

    def prepare() -> list[Answer]:
        ids = llm.chat_ids(prompt)
        if ask.before:
            ids = [*ask.before, *(ids[1:] if ids[:1] == [llm.tokenizer.bos_id] else ids)]
        length = call.room(llm.max_context, len(ids), ask.max_tokens)
        params = SamplingParams(**{**ask.sampling, **forced, "max_tokens": length, "salt": call.key.salt})
        found = llm.several_answers(ids, params, continues=ask.goes_on)
        for each in found:
            reading.show(each, continues=ask.goes_on)
        return found

    answers = await in_thread_if(call.large or in_form, prepare)
    return Chat(model, await call.begin(model, answers), reading)


async def rendered(
    call: Call,
    reading: Reading,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    add_generation_prompt: bool = True,
    goes_on: bool = False,
) -> RenderedPrompt:
    """Messages as the model is shown them. Raises RequestError, also where its template fails at them."""
    known = check_variables(variables)

    def render() -> RenderedPrompt:
        given = with_known_roles(messages)
        return reading.render(given, add_generation_prompt=add_generation_prompt, goes_on=goes_on, **known)

    try:
        prompt = await render_apart(reading.llm.isolation, render, large=call.large)
    except ModelFileError as reason:  # the template is the model's, but what it fails at is the caller's
        raise RequestError(str(reason)) from None
    call.large = call.large or len(prompt) > LARGE  # a template can make much of little
    return prompt
