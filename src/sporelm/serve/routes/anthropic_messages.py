"""/v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.answering import AnswerStream, in_thread_if
from sporelm.serve.anthropic_blocks import chat_messages, chat_tools, choice_of
from sporelm.serve.chat import Chat, ChatAsk, begin_chat, goes_on, rendered
from sporelm.serve.endpoint import Body, Call, Endpoint, Stream, encoded
from sporelm.serve.events import anthropic_error, sse
from sporelm.serve.failures import anthropic_shape
from sporelm.serve.forms import grammar_of
from sporelm.serve.reading import Arguments, CallBegun, Content, Delta, Reading, Reasoning
from sporelm.serve.sampling import TopK


class AnthropicTool(msgspec.Struct, kw_only=True):
    name: str
    input_schema: dict[str, Any]
    description: str = ""
    type: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingWish(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountRequest(Body, kw_only=True):
    """What is counted of a request; all of a `MessagesRequest` that becomes the prompt."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingWish | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    # What clients may send and what changes nothing here; docs/server.md says so.
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


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
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
    """`input_tokens` are those that were computed; `cache_read_input_tokens` those that were found."""

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


class Count(msgspec.Struct):
    input_tokens: int


def ask_of(body: MessagesRequest) -> ChatAsk:
    """What a request asks for. Raises RequestError, Refusal."""
    sampling: dict[str, Any] = {
        name: value for name in ("temperature", "top_p", "top_k") if (value := getattr(body, name)) is not None
    }
    if body.stop_sequences:
        sampling["stop"] = tuple(body.stop_sequences)
    grammar = grammar_of(_form(body))
    if grammar is not None:
        sampling["grammar"] = grammar
    choice = body.tool_choice
    messages = chat_messages(body.system, body.messages)
    return ChatAsk(
        messages=messages,
        goes_on=goes_on(messages),
        sampling=sampling,
        max_tokens=body.max_tokens,
        tools=chat_tools(body.tools),
        tool_choice=choice_of(choice.type, choice.name) if choice else None,
        parallel=not (choice and choice.disable_parallel_tool_use),
        variables=_variables(body),
    )


def _form(body: CountRequest) -> dict[str, Any] | None:
    """What an answer must look like. Raises RequestError for what cannot be had."""
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            raise RequestError(f"{name} cannot be had: this server runs no tools; leave it out, and give tools")
    form = body.output_config.format if body.output_config is not None else None
    return body.output_format if form is None else form


def _variables(body: CountRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.thinking is not None:
        found["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        found["reasoning_effort"] = body.output_config.effort
    return found


async def messages(call: Call, body: MessagesRequest) -> Response | AnthropicMessage:
    """The answer to a chat, whole or in pieces."""
    ask = await in_thread_if(call.large, lambda: ask_of(body))
    model = await call.model(body.model)
    chat = await begin_chat(call, model, ask)
    number = f"msg_{call.request_id}"
    if body.stream:
        return Stream(_events(number, chat), "text/event-stream", anthropic_error, call)
    (answered,) = await chat.whole()
    reply, content = answered.reply, list[dict[str, Any]]()
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.content or not (reply.calls or content):
        content.append({"type": "text", "text": reply.content})
    for each in reply.calls:
        content.append({"type": "tool_use", "id": each.id, "name": each.name, "input": json.loads(each.arguments)})
    reason, stop = ended(chat)
    return AnthropicMessage(number, model.name, content, reason, stop, usage_of(chat))


def usage_of(chat: Chat) -> AnthropicUsage:
    """What was computed, found and made, once the answer has ended."""
    completion = chat.completions[0]
    assert completion is not None
    cached = completion.cached_tokens
    computed, made = len(completion.prompt_token_ids) - cached, len(completion.token_ids)
    return AnthropicUsage(computed, made, cached, output_tokens_details=ThinkingDetails(chat.thought[0]))


def ended(chat: Chat) -> tuple[str, str | None]:
    """Why an answer ended, in Anthropic's words, and at which of the stop sequences."""
    reason = chat.finish_reason(0)
    if reason != "stop":
        return {"length": "max_tokens", "tool_calls": "tool_use"}[reason], None
    stop = stop_found(chat.streams[0])
    return ("stop_sequence", stop) if stop is not None else ("end_turn", None)


def stop_found(stream: AnswerStream) -> str | None:
    """The stop text before which an answer ended; None if it ended by itself."""
    answer = stream.answer
    if not answer.params.stop or not answer.token_ids or answer.token_ids[-1] in answer.request.stop_ids:
        return None
    whole = answer.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    at = max(0, len(answer.text) - 4)  # spaces at the beginning may have been left out
    found = [(place, stop) for stop in answer.params.stop if (place := whole.find(stop, at)) >= 0]
    return min(found)[1] if found else None


class _Blocks:
    """The blocks of content of a stream, one open at a time."""

    def __init__(self) -> None:
        self.index, self.kind = -1, ""

    def events(self, delta: Delta) -> list[bytes]:
        """What is told of something new."""
        if isinstance(delta, Content):
            told: dict[str, Any] = {"type": "text_delta", "text": delta.text}
            return [*self._in("text", {"type": "text", "text": ""}), self._delta(told)]
        if isinstance(delta, Reasoning):
            told = {"type": "thinking_delta", "thinking": delta.text}
            return [*self._in("thinking", {"type": "thinking", "thinking": "", "signature": ""}), self._delta(told)]
        if isinstance(delta, CallBegun):
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._in(f"call {delta.index}", block)
        if isinstance(delta, Arguments):
            return [self._delta({"type": "input_json_delta", "partial_json": delta.text})]
        return []

    def _in(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        """Open a block of this kind, unless it is open."""
        if kind == self.kind:
            return []
        events = self.close()
        self.kind = kind
        self.index += 1
        told = {"type": "content_block_start", "index": self.index, "content_block": block}
        return [*events, sse(encoded(told), b"content_block_start")]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        told = {"type": "content_block_delta", "index": self.index, "delta": delta}
        return sse(encoded(told), b"content_block_delta")

    def close(self) -> list[bytes]:
        """Close the block that is open."""
        if not self.kind:
            return []
        self.kind = ""
        return [sse(encoded({"type": "content_block_stop", "index": self.index}), b"content_block_stop")]


async def _events(number: str, chat: Chat) -> AsyncGenerator[bytes, None]:
    prompt = chat.streams[0].answer.request.num_prompt
    begun = AnthropicMessage(number, chat.model.name, [], None, None, AnthropicUsage(prompt, 0))
    yield sse(encoded({"type": "message_start", "message": begun}), b"message_start")
    blocks = _Blocks()
    async for said in chat.said():
        for delta in said.deltas:
            for event in blocks.events(delta):
                yield event
    if blocks.index < 0:
        for event in blocks.events(Content("")):
            yield event
    for event in blocks.close():
        yield event
    reason, stop = ended(chat)
    told = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": stop},
        "usage": usage_of(chat),
    }
    yield sse(encoded(told), b"message_delta")
    yield sse(b'{"type":"message_stop"}', b"message_stop")


async def count_tokens(call: Call, body: CountRequest) -> Count:
    """How many tokens a request's prompt would have."""
    model = await call.model(body.model)
    llm = model.llm.llm
    call.check_size(len(body.messages), None)
    choice = body.tool_choice
    reading = Reading(llm, chat_tools(body.tools), choice_of(choice.type, choice.name) if choice else None)
    asked = await in_thread_if(call.large, lambda: chat_messages(body.system, body.messages))
    prompt = await rendered(call, reading, asked, _variables(body), goes_on=goes_on(asked))
    return Count(len(await in_thread_if(call.large, lambda: llm.chat_ids(prompt))))


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/messages",
        messages,
        body=MessagesRequest,
        reply=AnthropicMessage,
        streams="text/event-stream",
        shape=anthropic_shape,
        tag="Anthropic",
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        body=CountRequest,
        reply=Count,
        shape=anthropic_shape,
        tag="Anthropic",
    ),
]
