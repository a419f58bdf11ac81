"""A chat in the terms that all APIs share: messages in; text, reasoning and tool calls out.

Each API translates its request into a `ChatRequest`, and the `ChatChunk`s of a `ChatStream` into its own events.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.api.completion import Completion, Piece
from sporelm.api.isolation import render_isolated, take_images_isolated
from sporelm.api.sampling_params import SamplingParams
from sporelm.api.text_generation import TextGeneration
from sporelm.errors import ModelFileError, RequestError
from sporelm.serve.chat.answer_stream import AnswerStream, merge_streams, run_in_thread_if
from sporelm.serve.chat.chat_format import ChatFormat, ends_with_answer
from sporelm.serve.chat.image_parts import with_request_path
from sporelm.serve.chat.remote_images import fetch_remote_images
from sporelm.serve.chat.token_usage import Usage, check_finished, usage_of
from sporelm.serve.http.api_call import LARGE_BYTES, ApiCall
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.text import RenderedPrompt
from sporelm.text.dialects import CallStart, Delta, Reasoning, Reply
from sporelm.text.dialects.tool_prompt import check_variables


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A chat to be answered.

    sampling            fields of `SamplingParams`, except max_tokens and salt
    max_tokens          of each answer; None: what the context has room for
    tools               functions that may be called, as in OpenAI's API
    tool_choice         as in OpenAI's API; None: the model decides
    template_variables  variables that `check_variables` accepts
    context_ids         ids of an earlier exchange, which the messages continue
    continue_last       whether the answer continues the last message, the assistant's, instead of starting a new one
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    parallel: bool = True
    template_variables: Mapping[str, Any] | None = None
    context_ids: Sequence[int] = ()
    continue_last: bool = False


class ChatChunk(NamedTuple):
    """New deltas of the answer number `choice_index`. The last chunk of each answer has its completion in `piece`."""

    choice_index: int
    deltas: list[Delta]
    piece: Piece


class ChatResult(NamedTuple):
    """A whole answer. Its finish reason is stop, length or tool_calls."""

    reply: Reply
    completion: Completion
    finish_reason: str


class ChatStream:
    """The answers to a chat, as they are generated."""

    def __init__(self, model: ServedModel, streams: list[AnswerStream], chat_format: ChatFormat) -> None:
        self.model = model
        self.streams = streams
        self.parsers = [chat_format.parser() for _ in streams]
        self.completions: list[Completion | None] = [None] * len(streams)
        self.has_calls = [False] * len(streams)
        self.reasoning_tokens = [0] * len(streams)  # delimiters included

    async def chunks(self) -> AsyncGenerator[ChatChunk, None]:
        """Yield all answers as they are generated. Raises ApiError for an answer that fails, BackendError."""
        async for index, piece in merge_streams(self.streams):
            parser = self.parsers[index]
            is_reasoning = parser.in_reasoning
            deltas = parser.push(piece.text) if piece.text else []
            if piece.completion is not None:
                check_finished(piece.completion, has_grammar=self.streams[index].has_grammar)
                self.completions[index] = piece.completion
                deltas = [*deltas, *parser.finish()]
            for delta in deltas:
                if isinstance(delta, CallStart):
                    self.has_calls[index] = True
                elif isinstance(delta, Reasoning):
                    is_reasoning = True
            if is_reasoning or parser.in_reasoning:
                self.reasoning_tokens[index] += len(piece.token_ids)
            if deltas or piece.token_ids or piece.completion is not None:
                yield ChatChunk(index, deltas, piece)

    def finish_reason(self, index: int) -> str:
        """Return why an answer ended: stop, length or tool_calls."""
        completion = self.completions[index]
        assert completion is not None
        if completion.finish_reason == "stop" and self.has_calls[index]:
            return "tool_calls"
        return completion.finish_reason

    @property
    def usage(self) -> Usage:
        """The usage of all answers, once they have ended."""
        return usage_of([[each for each in self.completions if each is not None]], sum(self.reasoning_tokens))

    async def collect(self) -> list[ChatResult]:
        """Return all answers when the last one has ended."""
        replies = [Reply() for _ in self.streams]
        async for chunk in self.chunks():
            replies[chunk.choice_index].add(chunk.deltas)
        completions = [each for each in self.completions if each is not None]
        return [ChatResult(replies[at], each, self.finish_reason(at)) for at, each in enumerate(completions)]


async def start_chat(call: ApiCall, model: ServedModel, request: ChatRequest) -> ChatStream:
    """Start the answers to a chat. Raises RequestError, ContextOverflow, QueueFull."""
    call.check_chat_size(len(request.messages), request.max_tokens)
    llm = model.llm
    chat_format = await run_in_thread_if(
        call.is_large, lambda: ChatFormat(llm, request.tools, request.tool_choice, parallel=request.parallel)
    )
    prompt = await render_chat(
        call, chat_format, request.messages, request.template_variables, continue_last=request.continue_last
    )

    content_grammar = request.sampling.get("grammar")
    may_have_grammar = content_grammar is not None or bool(request.tools)
    in_thread = call.is_large or may_have_grammar
    grammar = await run_in_thread_if(in_thread, lambda: chat_format.answer_grammar(content_grammar))
    await model.async_llm.isolation.try_grammar(grammar, call.key.cache_salt)

    def prepare() -> list[TextGeneration]:
        ids = llm.chat_ids(prompt)
        if request.context_ids:
            ids = [*request.context_ids, *(ids[1:] if ids[:1] == [llm.tokenizer.bos_id] else ids)]
        max_tokens = call.answer_limit(llm.max_context, len(ids), request.max_tokens)
        sampling = {**request.sampling, "grammar": grammar, "max_tokens": max_tokens, "salt": call.key.cache_salt}
        answers = llm.prepare_generations(ids, SamplingParams(**sampling), continues=request.continue_last)
        for answer in answers:
            chat_format.show_delimiters(answer, continues=request.continue_last)
        return answers

    answers = await run_in_thread_if(in_thread, prepare)
    return ChatStream(model, await call.start(model, answers), chat_format)


def check_continued(messages: Sequence[Mapping[str, Any]], *, continue_last: bool) -> None:
    """Raise RequestError if the last message is to be continued and cannot be."""
    if continue_last and not ends_with_answer(messages):
        raise RequestError("continue_final_message needs a last message of the assistant with text and without calls")


async def render_chat(
    call: ApiCall,
    chat_format: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    template_variables: Mapping[str, Any] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_last: bool = False,
) -> RenderedPrompt:
    """Render messages for the model, with their remote images. Raises RequestError, also where its template fails on
    them."""
    variables = check_variables(template_variables)
    messages = await fetch_remote_images(call, messages, can_see=chat_format.llm.can_see)
    llm = chat_format.llm
    try:
        taken = await take_images_isolated(llm, messages, call.key.cache_salt)
        call.is_large = call.is_large or bool(taken.pictures)

        def render() -> RenderedPrompt:
            return chat_format.render(
                taken.messages,
                taken.pictures,
                add_generation_prompt=add_generation_prompt,
                continue_last=continue_last,
                **variables,
            )

        prompt = await render_isolated(llm.isolation, render, large=call.is_large)
    except ModelFileError as reason:  # the template is the model's, but the messages it fails on are the caller's
        raise RequestError(str(reason)) from None
    except RequestError as reason:
        raise with_request_path(reason, messages) from None
    call.is_large = call.is_large or len(prompt) > LARGE_BYTES  # a template can write much for short messages
    return prompt
