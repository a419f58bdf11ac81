"""/v1/responses, as OpenAI's clients speak it. Nothing is stored: all of a dialog is sent each time."""

from collections.abc import AsyncGenerator
from time import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.answering import in_thread_if
from sporelm.serve.chat import Chat, ChatAsk, begin_chat
from sporelm.serve.endpoint import Body, Call, Endpoint, Stream
from sporelm.serve.forms import grammar_of
from sporelm.serve.response_events import Events
from sporelm.serve.response_items import chat_messages, chat_tools
from sporelm.serve.scores import Scores
from sporelm.serve.usage import AnswerDetails, PromptDetails


class TextWish(Body, kw_only=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningWish(Body, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseRequest(Body, kw_only=True):
    """What needs a memory is refused."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextWish | None = None
    reasoning: ReasoningWish | None = None
    truncation: Literal["disabled", "auto"] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    metadata: dict[str, Any] | None = None
    # What clients may send and what changes nothing here; docs/server.md says so.
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
    """`cache_write_tokens` are those that were computed, and can be found from now on."""

    cache_write_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: AnswerDetails


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


LOGPROBS = "message.output_text.logprobs"  # in `include`
NEEDING_MEMORY = ("previous_response_id", "conversation", "prompt", "background")


def ask_of(body: ResponseRequest) -> ChatAsk:
    """What a request asks for. Raises RequestError for what cannot be had."""
    for name in NEEDING_MEMORY:
        if getattr(body, name):
            raise RequestError(f"{name} cannot be had: this server stores no responses; send the whole dialog as input")
    if body.truncation == "auto":
        raise RequestError("truncation 'auto' cannot be had: nothing is left out of a prompt; shorten it, or send less")
    sampling: dict[str, Any] = {
        name: value for name in ("temperature", "top_p") if (value := getattr(body, name)) is not None
    }
    if body.top_logprobs is not None or LOGPROBS in (body.include or ()):
        sampling["logprobs"] = body.top_logprobs or 0
    grammar = grammar_of(body.text.format if body.text else None)
    if grammar is not None:
        sampling["grammar"] = grammar
    effort = body.reasoning.effort if body.reasoning else None
    return ChatAsk(
        messages=chat_messages(body.instructions, body.input),
        sampling=sampling,
        max_tokens=body.max_output_tokens,
        tools=chat_tools(body.tools),
        tool_choice=body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        variables=_variables(effort),
    )


def _variables(effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})


async def responses(call: Call, body: ResponseRequest) -> Response | ResponseObject:
    """The answer to an input, whole or as events."""
    call.check_size(1 if isinstance(body.input, str) else len(body.input), body.max_output_tokens)
    ask = await in_thread_if(call.large, lambda: ask_of(body))
    model = await call.model(body.model)
    chat = await begin_chat(call, model, ask)
    begun = ResponseObject(
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
    events = Events(begun.id, Scores(model, chat.streams[0], wanted="logprobs" in ask.sampling))
    if body.stream:
        return Stream(_events(begun, chat, events), "text/event-stream", events.error, call)
    async for said in chat.said():
        events.take(said)
    events.end(cut=is_cut(chat))
    return finished(begun, chat, events.items)


def is_cut(chat: Chat) -> bool:
    """Whether an answer reached its limit of tokens."""
    return chat.finish_reason(0) == "length"


def finished(begun: ResponseObject, chat: Chat, items: list[dict[str, Any]]) -> ResponseObject:
    """A response at its end."""
    usage, cut = chat.usage, is_cut(chat)
    found = usage.prompt_tokens_details
    written = usage.prompt_tokens - found.cached_tokens
    return msgspec.structs.replace(
        begun,
        status="incomplete" if cut else "completed",
        incomplete_details={"reason": "max_output_tokens"} if cut else None,
        output=items,
        usage=ResponseUsage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
            InputDetails(found.cached_tokens, found.cache_miss, cache_write_tokens=written),
            usage.completion_tokens_details,
        ),
    )


async def _events(begun: ResponseObject, chat: Chat, events: Events) -> AsyncGenerator[bytes, None]:
    for name in ("response.created", "response.in_progress"):
        yield events.event(name, response=msgspec.to_builtins(begun))
    async for said in chat.said():
        for event in events.take(said):
            yield event
    for event in events.end(cut=is_cut(chat)):
        yield event
    done = finished(begun, chat, events.items)
    yield events.event(f"response.{done.status}", response=done)


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/responses",
        responses,
        body=ResponseRequest,
        reply=ResponseObject,
        streams="text/event-stream",
    )
]
