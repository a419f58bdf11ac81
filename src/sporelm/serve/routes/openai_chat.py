"""/v1/chat/completions: OpenAI's chat API."""

from collections.abc import AsyncGenerator
from time import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_stream import (
    ChatChunk,
    ChatRequest,
    ChatResult,
    ChatStream,
    check_continued,
    start_chat,
)
from sporelm.serve.chat.image_parts import messages_from_openai
from sporelm.serve.chat.reasoning_effort import checked_effort
from sporelm.serve.chat.response_format import request_grammar
from sporelm.serve.chat.sampling_fields import MaxTokens, SamplingFields, StreamOptions, num_logprobs, sampling_from
from sporelm.serve.chat.token_logprobs import TokenLogprob, chat_logprobs
from sporelm.serve.chat.token_usage import AnswerTimings, Usage, timings_of
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.sse import encode_event, openai_error_event
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.text.dialects import Arguments, CallStart, Content, Delta, Reasoning


class ChatCompletionRequest(SamplingFields, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # Accepted without effect, since clients send them unasked; docs/server.md lists them.
    verbosity: Any = None
    prediction: Any = None
    # Refused with a message of their own.
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None


class ChatFunction(msgspec.Struct):
    name: str
    arguments: str


class ChatToolCall(msgspec.Struct):
    id: str
    function: ChatFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, omit_defaults=True):
    role: Literal["assistant", ""] = ""
    content: str | UnsetType | None = UNSET
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoiceLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: ChatChoiceLogprobs | None = None


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: AnswerTimings
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None


UNSUPPORTED = {
    "functions": "it is the old name of tools: give tools",
    "function_call": "it is the old name of tool_choice: give tools and tool_choice",
    "audio": "the models of this server do not speak: leave it out",
    "web_search_options": "this server does not search the web: leave it out",
    "moderation": "this server does not moderate: leave it out",
}


def chat_request(body: ChatCompletionRequest) -> ChatRequest:
    """Return the request in the terms of all APIs. Raises RequestError, ApiError."""
    for name, reason in UNSUPPORTED.items():
        if getattr(body, name) is not None:
            raise RequestError(f"{name} is not supported: {reason}")
    sampling = sampling_from(body)
    if body.n is not None:
        sampling["n"] = body.n
    logprobs = num_logprobs(body.logprobs, body.top_logprobs)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    grammar = request_grammar(body.response_format, body.grammar)
    if grammar is not None:
        sampling["grammar"] = grammar
    continue_last = bool(body.continue_final_message)
    check_continued(body.messages, continue_last=continue_last)
    if body.add_generation_prompt is not None and body.add_generation_prompt is continue_last:
        raise RequestError("add_generation_prompt is false with continue_final_message, and true without: leave it out")
    return ChatRequest(
        messages=messages_from_openai(body.messages),
        continue_last=continue_last,
        sampling=sampling,
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        template_variables=_template_variables(body),
    )


def _template_variables(body: ChatCompletionRequest) -> dict[str, Any]:
    """Return the variables of the template: `chat_template_kwargs` first, then the fields for reasoning."""
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", checked_effort("reasoning_effort", body.reasoning_effort))
    enable_thinking = body.enable_thinking
    if enable_thinking is None and body.thinking is not None:
        enable_thinking = body.thinking.get("type") != "disabled"
    if enable_thinking is None and body.reasoning_effort == "none":
        enable_thinking = False
    if enable_thinking is not None:
        variables.setdefault("enable_thinking", enable_thinking)
    return variables


async def chat_completions(call: ApiCall, body: ChatCompletionRequest) -> Response | ChatCompletion:
    """The answers to a chat, whole or streamed."""
    max_answers = call.server.config.max_prompts
    if (body.n or 1) > max_answers:
        raise ApiError(400, f"n is {body.n}: at most {max_answers} completions are allowed (max_prompts)", param="n")
    request = await run_in_thread_if(call.is_large, lambda: chat_request(body))
    model = await call.model(body.model)
    chat = await start_chat(call, model, request)
    events = ChatEvents(f"chatcmpl-{call.request_id}", int(time()), chat, body)
    if body.stream:
        return StreamedResponse(events.all(), "text/event-stream", openai_error_event, call)
    results = await chat.collect()
    choices = [_choice(chat, index, each, logprobs=bool(body.logprobs)) for index, each in enumerate(results)]
    return ChatCompletion(
        events.completion_id,
        events.created,
        model.name,
        choices,
        chat.usage,
        timings_of(results[0].completion),
        system_fingerprint=model.fingerprint,
    )


def _choice(chat: ChatStream, index: int, result: ChatResult, *, logprobs: bool) -> ChatChoice:
    reply = result.reply
    calls = [ChatToolCall(each.id, ChatFunction(each.name, each.arguments)) for each in reply.calls]
    message = ChatMessage(
        "assistant",
        reply.content if reply.content or not calls else None,
        reply.reasoning or None,
        calls or None,
    )
    entries = chat_logprobs(chat.model, chat.streams[index].answer, 0) if logprobs else None
    finish_reason: Any = result.finish_reason
    return ChatChoice(index, message, finish_reason, ChatChoiceLogprobs(entries) if entries is not None else None)


class ChatEvents:
    """The answers to a chat as server-sent events."""

    def __init__(self, completion_id: str, created: int, chat: ChatStream, body: ChatCompletionRequest) -> None:
        self.completion_id = completion_id
        self.created = created
        self.chat = chat
        self.has_logprobs = bool(body.logprobs)
        self.include_usage = body.stream_options is not None and body.stream_options.include_usage
        model = chat.model
        fields = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model.name}
        fields["system_fingerprint"] = model.fingerprint
        self._head = encode_json(fields)[:-1]
        self._tail = b',"usage":null}\n\n' if self.include_usage else b"}\n\n"
        self._num_scored = [0] * len(chat.streams)  # tokens whose log probabilities were sent

    async def all(self) -> AsyncGenerator[bytes, None]:
        """Yield every event."""
        for index in range(len(self.chat.streams)):
            yield self._event(index, {"role": "assistant", "content": ""})
        async for chunk in self.chat.chunks():
            for event in self._chunk_events(chunk):
                yield event
        if self.include_usage:
            completion = next(each for each in self.chat.completions if each is not None)
            last = {"choices": [], "usage": self.chat.usage, "timings": timings_of(completion)}
            yield b"data: " + self._head + b"," + encode_json(last)[1:] + b"\n\n"
        yield encode_event(b"[DONE]")

    def _chunk_events(self, chunk: ChatChunk) -> list[bytes]:
        events = []
        logprobs = self._logprobs(chunk)
        for delta in chunk.deltas:
            if isinstance(delta, Content) and logprobs is None:
                events.append(self._content_event(chunk.choice_index, delta.text))
            elif (fields := delta_fields(delta)) is not None:
                events.append(self._event(chunk.choice_index, fields, logprobs))
                logprobs = None if logprobs is None else []
        if logprobs:
            events.append(self._event(chunk.choice_index, {"content": ""}, logprobs))
        if chunk.piece.completion is not None:
            events.append(self._event(chunk.choice_index, {}, None, self.chat.finish_reason(chunk.choice_index)))
        return events

    def _logprobs(self, chunk: ChatChunk) -> list[TokenLogprob] | None:
        if not self.has_logprobs:
            return None
        begin = self._num_scored[chunk.choice_index]
        end = begin + len(chunk.piece.token_ids)
        self._num_scored[chunk.choice_index] = end
        return chat_logprobs(self.chat.model, self.chat.streams[chunk.choice_index].answer, begin, end)

    def _content_event(self, index: int, text: str) -> bytes:
        """Return the event of some text. Most events are of this kind, so it is put together from encoded parts."""
        parts = (
            b"data: ", self._head, b',"choices":[{"index":%d,"delta":{"content":' % index, encode_json(text),
            b'},"logprobs":null,"finish_reason":null}]', self._tail,
        )  # fmt: skip
        return b"".join(parts)

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: list[TokenLogprob] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs is not None else None,
            "finish_reason": finish_reason,
        }
        return b"data: " + self._head + b',"choices":[' + encode_json(choice) + b"]" + self._tail


def delta_fields(delta: Delta) -> dict[str, Any] | None:
    """Return the `delta` of an event; None for the end of a call, which has none."""
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallStart):
        function = {"name": delta.name, "arguments": ""}
        call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    if isinstance(delta, Arguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return None


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        body=ChatCompletionRequest,
        takes_images=True,
        reply=ChatCompletion,
        stream_media_type="text/event-stream",
    )
]
