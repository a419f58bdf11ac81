"""/v1/messages and /v1/messages/count_tokens: Anthropic's API."""

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.anthropic_blocks import (
    messages_from_blocks,
    tool_choice_from_anthropic,
    tools_from_anthropic,
)
from sporelm.serve.chat.chat_format import ChatFormat, ends_with_answer
from sporelm.serve.chat.chat_stream import ChatRequest, ChatStream, render_chat, start_chat
from sporelm.serve.chat.reasoning_effort import checked_effort
from sporelm.serve.chat.response_format import format_grammar
from sporelm.serve.chat.sampling_fields import MaxTokens, TopK, given_fields
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError, anthropic_error_body
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody, encode_json
from sporelm.serve.http.sse import anthropic_error_event, encode_event
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.text.dialects import Arguments, CallStart, Content, Delta, Reasoning


class AnthropicTool(msgspec.Struct, kw_only=True):
    name: str
    input_schema: dict[str, Any]
    description: str = ""
    type: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingConfig(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountTokensRequest(RequestBody, kw_only=True):
    """The fields of a `MessagesRequest` that become its prompt."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    # Accepted without effect, since clients send them unasked; docs/server.md lists them.
    betas: Any = None
    billing_policy: Any = None
    cache_control: Any = None
    compaction: Any = None
    context_management: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    speed: Any = None
    thread: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: MaxTokens
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    metadata: Any = None
    service_tier: Any = None


class ThinkingDetails(msgspec.Struct):
    thinking_tokens: int = 0


class AnthropicUsage(msgspec.Struct):
    """`input_tokens` were computed; `cache_read_input_tokens` were found in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingDetails = msgspec.field(default_factory=ThinkingDetails)


class AnthropicMessage(msgspec.Struct):
    id: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(msgspec.Struct):
    input_tokens: int


def chat_request(body: MessagesRequest) -> ChatRequest:
    """Return the request in the terms of all APIs. Raises RequestError, ApiError."""
    sampling = given_fields(body, ("temperature", "top_p", "top_k"))
    if body.stop_sequences:
        sampling["stop"] = tuple(body.stop_sequences)
    grammar = format_grammar(_response_format(body))
    if grammar is not None:
        sampling["grammar"] = grammar
    choice = body.tool_choice
    messages = messages_from_blocks(body.system, body.messages)
    return ChatRequest(
        messages=messages,
        continue_last=ends_with_answer(messages),
        sampling=sampling,
        max_tokens=body.max_tokens,
        tools=tools_from_anthropic(body.tools),
        tool_choice=tool_choice_from_anthropic(choice.type, choice.name) if choice else None,
        parallel=not (choice and choice.disable_parallel_tool_use),
        template_variables=_template_variables(body),
    )


def _response_format(body: CountTokensRequest) -> dict[str, Any] | None:
    """Return the form of the answer. Raises ApiError for fields that are not supported."""
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            message = f"{name} is not supported: this server runs no tools; leave it out, and give tools"
            raise ApiError(400, message, param=name)
    output_format = body.output_config.format if body.output_config is not None else None
    return body.output_format if output_format is None else output_format


def _template_variables(body: CountTokensRequest) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        variables["reasoning_effort"] = checked_effort("output_config.effort", body.output_config.effort)
    return variables


async def messages(call: ApiCall, body: MessagesRequest) -> Response | AnthropicMessage:
    """The answer to a chat, whole or streamed."""
    request = await run_in_thread_if(call.is_large, lambda: chat_request(body))
    model = await call.model(body.model)
    chat = await start_chat(call, model, request)
    message_id = f"msg_{call.request_id}"
    if body.stream:
        return StreamedResponse(_events(message_id, chat), "text/event-stream", anthropic_error_event, call)
    (result,) = await chat.collect()
    reply = result.reply
    content = list[dict[str, Any]]()
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.content or not (reply.calls or content):
        content.append({"type": "text", "text": reply.content})
    for each in reply.calls:
        content.append({"type": "tool_use", "id": each.id, "name": each.name, "input": json.loads(each.arguments)})
    reason, stop_sequence = stop_reason(chat)
    return AnthropicMessage(message_id, model.name, content, reason, stop_sequence, anthropic_usage(chat))


def anthropic_usage(chat: ChatStream) -> AnthropicUsage:
    """Return the usage of an answer that has ended."""
    completion = chat.completions[0]
    assert completion is not None
    return AnthropicUsage(
        input_tokens=len(completion.prompt_token_ids) - completion.cached_tokens,
        output_tokens=len(completion.token_ids),
        cache_read_input_tokens=completion.cached_tokens,
        output_tokens_details=ThinkingDetails(chat.reasoning_tokens[0]),
    )


def stop_reason(chat: ChatStream) -> tuple[str, str | None]:
    """Return why an answer ended, in Anthropic's terms, and the stop sequence that ended it."""
    reason = chat.finish_reason(0)
    if reason != "stop":
        return {"length": "max_tokens", "tool_calls": "tool_use"}[reason], None
    stop_sequence = chat.streams[0].answer.matched_stop
    return ("stop_sequence", stop_sequence) if stop_sequence is not None else ("end_turn", None)


class _ContentBlocks:
    """The content blocks of a stream, one open at a time."""

    def __init__(self) -> None:
        self.index = -1
        self.open_kind = ""

    def delta_events(self, delta: Delta) -> list[bytes]:
        """Return the events of a delta."""
        if isinstance(delta, Content):
            fields: dict[str, Any] = {"type": "text_delta", "text": delta.text}
            return [*self._open("text", {"type": "text", "text": ""}), self._delta_event(fields)]
        if isinstance(delta, Reasoning):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            fields = {"type": "thinking_delta", "thinking": delta.text}
            return [*self._open("thinking", block), self._delta_event(fields)]
        if isinstance(delta, CallStart):
            tool_use: dict[str, Any] = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._open(f"call {delta.index}", tool_use)
        if isinstance(delta, Arguments):
            return [self._delta_event({"type": "input_json_delta", "partial_json": delta.text})]
        return []

    def _open(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        """Open a block of this kind, unless it is open. Return the events."""
        if kind == self.open_kind:
            return []
        events = self.close()
        self.open_kind = kind
        self.index += 1
        data = {"type": "content_block_start", "index": self.index, "content_block": block}
        return [*events, encode_event(encode_json(data), b"content_block_start")]

    def _delta_event(self, delta: dict[str, Any]) -> bytes:
        data = {"type": "content_block_delta", "index": self.index, "delta": delta}
        return encode_event(encode_json(data), b"content_block_delta")

    def close(self) -> list[bytes]:
        """Close the open block. Return the events."""
        if not self.open_kind:
            return []
        self.open_kind = ""
        return [encode_event(encode_json({"type": "content_block_stop", "index": self.index}), b"content_block_stop")]


async def _events(message_id: str, chat: ChatStream) -> AsyncGenerator[bytes, None]:
    usage = AnthropicUsage(chat.streams[0].answer.num_prompt_tokens, 0)
    start = AnthropicMessage(message_id, chat.model.name, [], None, None, usage)
    yield encode_event(encode_json({"type": "message_start", "message": start}), b"message_start")
    blocks = _ContentBlocks()
    async for chunk in chat.chunks():
        for delta in chunk.deltas:
            for event in blocks.delta_events(delta):
                yield event
    if blocks.index < 0:
        for event in blocks.delta_events(Content("")):
            yield event
    for event in blocks.close():
        yield event
    reason, stop_sequence = stop_reason(chat)
    data = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": stop_sequence},
        "usage": anthropic_usage(chat),
    }
    yield encode_event(encode_json(data), b"message_delta")
    yield encode_event(b'{"type":"message_stop"}', b"message_stop")


async def count_tokens(call: ApiCall, body: CountTokensRequest) -> TokenCount:
    """The number of tokens of a request's prompt."""
    model = await call.model(body.model)
    llm = model.llm
    call.check_chat_size(len(body.messages), None)
    choice = body.tool_choice
    tool_choice = tool_choice_from_anthropic(choice.type, choice.name) if choice else None
    chat_format = ChatFormat(llm, tools_from_anthropic(body.tools), tool_choice)
    chat = await run_in_thread_if(call.is_large, lambda: messages_from_blocks(body.system, body.messages))
    variables = _template_variables(body)
    prompt = await render_chat(call, chat_format, chat, variables, continue_last=ends_with_answer(chat))
    return TokenCount(len(await run_in_thread_if(call.is_large, lambda: llm.chat_ids(prompt))))


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/messages",
        messages,
        body=MessagesRequest,
        takes_images=True,
        reply=AnthropicMessage,
        stream_media_type="text/event-stream",
        error_format=anthropic_error_body,
        tag="Anthropic",
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        body=CountTokensRequest,
        takes_images=True,
        reply=TokenCount,
        error_format=anthropic_error_body,
        tag="Anthropic",
    ),
]
