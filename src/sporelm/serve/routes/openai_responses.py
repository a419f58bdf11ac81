"""/v1/responses: OpenAI's responses API. Nothing is stored: each request contains the whole conversation."""

from collections.abc import AsyncGenerator
from time import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_stream import ChatRequest, ChatStream, start_chat
from sporelm.serve.chat.reasoning_effort import checked_effort
from sporelm.serve.chat.response_events import ResponseEvents
from sporelm.serve.chat.response_format import format_grammar
from sporelm.serve.chat.response_items import messages_from_items, tools_from_responses
from sporelm.serve.chat.sampling_fields import MaxTokens, given_fields
from sporelm.serve.chat.token_logprobs import ChatLogprobs
from sporelm.serve.chat.token_usage import CompletionDetails, PromptDetails
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody
from sporelm.serve.http.streamed_response import StreamedResponse


class TextConfig(RequestBody, kw_only=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(RequestBody, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseRequest(RequestBody, kw_only=True):
    """Fields that refer to stored responses are refused."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["disabled", "auto"] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    metadata: dict[str, Any] | None = None
    # Accepted without effect, since clients send them unasked; docs/server.md lists them.
    max_tool_calls: Any = None
    store: Any = None
    user: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    client_metadata: Any = None
    context_management: Any = None
    access_programs: Any = None
    background_options: Any = None


class InputDetails(PromptDetails, kw_only=True):
    """`cache_write_tokens` were computed, and can be reused from now on."""

    cache_write_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: CompletionDetails


class ResponseObject(msgspec.Struct, kw_only=True):
    id: str
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    object: Literal["response"] = "response"
    error: None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    parallel_tool_calls: bool
    temperature: float | None
    top_p: float | None
    tool_choice: Any
    tools: list[dict[str, Any]]
    text: dict[str, Any]
    truncation: str = "disabled"
    store: bool = False
    previous_response_id: None = None
    metadata: dict[str, Any]


LOGPROBS_INCLUDE = "message.output_text.logprobs"  # in `include`
STATEFUL_FIELDS = ("previous_response_id", "conversation", "prompt", "background")


def chat_request(body: ResponseRequest) -> ChatRequest:
    """Return the request in the terms of all APIs. Raises RequestError, ApiError."""
    for name in STATEFUL_FIELDS:
        if getattr(body, name):
            raise RequestError(
                f"{name} is not supported: this server stores no responses; send the whole conversation as input"
            )
    if body.truncation == "auto":
        raise RequestError("truncation 'auto' is not supported: prompts are never truncated; send a shorter one")
    sampling = given_fields(body, ("temperature", "top_p"))
    if body.top_logprobs is not None or LOGPROBS_INCLUDE in (body.include or ()):
        sampling["logprobs"] = body.top_logprobs or 0
    grammar = format_grammar(body.text.format if body.text else None)
    if grammar is not None:
        sampling["grammar"] = grammar
    return ChatRequest(
        messages=messages_from_items(body.instructions, body.input),
        sampling=sampling,
        max_tokens=body.max_output_tokens,
        tools=tools_from_responses(body.tools),
        tool_choice=body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        template_variables=_template_variables(body.reasoning.effort if body.reasoning else None),
    )


def _template_variables(effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    variables: dict[str, Any] = {"reasoning_effort": checked_effort("reasoning.effort", effort)}
    if effort == "none":
        variables["enable_thinking"] = False
    return variables


async def responses(call: ApiCall, body: ResponseRequest) -> Response | ResponseObject:
    """The answer to an input, whole or as events."""
    call.check_chat_size(1 if isinstance(body.input, str) else len(body.input), body.max_output_tokens)
    request = await run_in_thread_if(call.is_large, lambda: chat_request(body))
    model = await call.model(body.model)
    chat = await start_chat(call, model, request)
    response = ResponseObject(
        id=f"resp_{call.request_id}",
        created_at=int(time()),
        status="in_progress",
        model=model.name,
        output=[],
        usage=None,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        temperature=body.temperature,
        top_p=body.top_p,
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        text={"format": (body.text.format if body.text else None) or {"type": "text"}},
        metadata=body.metadata or {},
    )
    logprobs = ChatLogprobs(model, chat.streams[0], enabled="logprobs" in request.sampling)
    events = ResponseEvents(response.id, logprobs)
    if body.stream:
        return StreamedResponse(_events(response, chat, events), "text/event-stream", events.error, call)
    async for chunk in chat.chunks():
        events.add(chunk)
    events.finish(is_truncated=is_truncated(chat))
    return finished_response(response, chat, events.items)


def is_truncated(chat: ChatStream) -> bool:
    """Return whether an answer reached its token limit."""
    return chat.finish_reason(0) == "length"


def finished_response(response: ResponseObject, chat: ChatStream, items: list[dict[str, Any]]) -> ResponseObject:
    """Return a response with its output and usage."""
    usage = chat.usage
    details = usage.prompt_tokens_details
    num_computed = usage.prompt_tokens - details.cached_tokens
    return msgspec.structs.replace(
        response,
        status="incomplete" if is_truncated(chat) else "completed",
        incomplete_details={"reason": "max_output_tokens"} if is_truncated(chat) else None,
        output=items,
        usage=ResponseUsage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
            InputDetails(details.cached_tokens, details.cache_miss, cache_write_tokens=num_computed),
            usage.completion_tokens_details,
        ),
    )


async def _events(response: ResponseObject, chat: ChatStream, events: ResponseEvents) -> AsyncGenerator[bytes, None]:
    for name in ("response.created", "response.in_progress"):
        yield events.event(name, response=msgspec.to_builtins(response))
    async for chunk in chat.chunks():
        for event in events.add(chunk):
            yield event
    for event in events.finish(is_truncated=is_truncated(chat)):
        yield event
    finished = finished_response(response, chat, events.items)
    yield events.event(f"response.{finished.status}", response=finished)


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/responses",
        responses,
        body=ResponseRequest,
        takes_images=True,
        reply=ResponseObject,
        stream_media_type="text/event-stream",
    )
]
