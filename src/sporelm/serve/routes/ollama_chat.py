"""/api/chat: Ollama's chat API, as JSON or as a line of JSON for each piece."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response

from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_stream import ChatStream, start_chat
from sporelm.serve.chat.image_parts import check_image_role, ollama_content
from sporelm.serve.chat.ollama_options import model_name_from_ollama
from sporelm.serve.chat.ollama_replies import (
    NDJSON,
    OllamaFields,
    OllamaReply,
    Stopwatch,
    last_reply,
    ollama_chat_request,
    ollama_error_line,
    timestamp,
)
from sporelm.serve.chat.token_logprobs import ChatLogprobs
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ollama_error_body
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.serve.model_pool.keep_alive import KeepAlive
from sporelm.text.dialects import CallEnd, Content, Delta, Reasoning, Reply


class OllamaMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str
    content: str | None = ""
    thinking: str | None = None
    images: list[str] | None = None  # base64
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(OllamaFields, kw_only=True):
    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


def template_message(message: OllamaMessage, index: int) -> dict[str, Any]:
    """Return a message for chat templates, its images before its text. Raises RequestError for invalid images."""
    path = f"messages[{index}].images"
    if message.images:
        check_image_role(message.role, f"{path}[0]")
    content = ollama_content(message.content or "", message.images, path)
    fields: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.tool_calls:
        fields["tool_calls"] = message.tool_calls
    if message.tool_name:
        fields["name"] = message.tool_name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


async def chat(call: ApiCall, body: OllamaChatRequest) -> Response | OllamaReply:
    """The answer to a chat, in lines unless `stream` is false. Without messages the model is only loaded, or unloaded
    if `keep_alive` is 0."""
    stopwatch = Stopwatch()
    name = model_name_from_ollama(call.server.models, body.model)
    keep_alive = KeepAlive(call, name, body.keep_alive)
    if not body.messages:
        reason = await keep_alive.load_or_unload()
        empty = {"role": "assistant", "content": ""}
        return OllamaReply(keep_alive.name, timestamp(), True, message=empty, done_reason=reason)
    model = await call.model(name)
    stopwatch.mark_loaded()
    given = body.messages

    def template_messages() -> list[dict[str, Any]]:
        return [template_message(each, index) for index, each in enumerate(given)]

    messages = await run_in_thread_if(call.is_large, template_messages)
    stream = await start_chat(call, model, ollama_chat_request(model, body, messages, body.tools))
    logprobs = ChatLogprobs(model, stream.streams[0], enabled=bool(body.logprobs))
    if body.stream is not False:
        return StreamedResponse(_lines(stream, logprobs, stopwatch), NDJSON, ollama_error_line, call)
    (result,) = await stream.collect()
    message = _reply_message(result.reply)
    return last_reply(model, result.completion, stopwatch, message=message, logprobs=logprobs.of_answer())


def _reply_message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["thinking"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": each.id, "function": {"index": at, "name": each.name, "arguments": json.loads(each.arguments)}}
            for at, each in enumerate(reply.calls)
        ]
    return message


def _delta_message(delta: Delta, reply: Reply) -> dict[str, Any] | None:
    """Return a delta as a line's message; None for parts of a call, which Ollama sends whole."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if isinstance(delta, Content):
        return message | {"content": delta.text}
    if isinstance(delta, Reasoning):
        return message | {"thinking": delta.text}
    if isinstance(delta, CallEnd):
        return message | {"tool_calls": [_reply_message(reply)["tool_calls"][delta.index]]}
    return None


async def _lines(stream: ChatStream, chat_logprobs: ChatLogprobs, stopwatch: Stopwatch) -> AsyncGenerator[bytes, None]:
    name = stream.model.name
    reply = Reply()
    empty = {"role": "assistant", "content": ""}
    async for chunk in stream.chunks():
        reply.add(chunk.deltas)
        logprobs = chat_logprobs.of_piece(chunk.piece)
        messages = [message for delta in chunk.deltas if (message := _delta_message(delta, reply)) is not None]
        for message in messages or ([empty] if logprobs else []):
            yield encode_json(OllamaReply(name, timestamp(), False, message=message, logprobs=logprobs)) + b"\n"
            logprobs = None
        if chunk.piece.completion is not None:
            yield encode_json(last_reply(stream.model, chunk.piece.completion, stopwatch, message=empty)) + b"\n"


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/api/chat",
        chat,
        body=OllamaChatRequest,
        takes_images=True,
        reply=OllamaReply,
        stream_media_type=NDJSON,
        error_format=ollama_error_body,
        tag="Ollama",
    )
]
