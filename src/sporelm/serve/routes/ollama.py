"""/api/chat, as Ollama's clients speak it: JSON, or a line of JSON for each piece."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.chat import Chat, begin_chat
from sporelm.serve.endpoint import Call, Endpoint, Stream, encoded
from sporelm.serve.failures import ollama_shape
from sporelm.serve.keeping import Keeping
from sporelm.serve.ollama_options import named
from sporelm.serve.ollama_replies import NDJSON, Asked, Clock, OllamaReply, ask_of, error_line, last, now
from sporelm.serve.reading import CallEnded, Content, Delta, Reasoning, Reply
from sporelm.serve.scores import Scores


class OllamaMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str
    content: str | None = ""
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(Asked, kw_only=True):
    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


def message_of(message: OllamaMessage, index: int) -> dict[str, Any]:
    """A message as templates know it. Raises RequestError for images."""
    if message.images:
        raise RequestError(f"messages[{index}] has images, which no model of this server can see: leave them out")
    found: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        found["reasoning_content"] = message.thinking
    if message.tool_calls:
        found["tool_calls"] = message.tool_calls
    if message.tool_name:
        found["name"] = message.tool_name
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


async def chat(call: Call, body: OllamaChatRequest) -> Response | OllamaReply:
    """The answer to a chat, in lines unless `stream` is false. Without messages the model is just loaded, or unloaded
    where `keep_alive` is 0."""
    clock, name = Clock(), named(call.server.models, body.model)
    keeping = Keeping(call, name, body.keep_alive)
    if not body.messages:
        reason = await keeping.alone()
        empty = {"role": "assistant", "content": ""}
        return OllamaReply(keeping.name, now(), True, message=empty, done_reason=reason)
    model = await call.model(name)
    clock.lap()
    messages = [message_of(each, index) for index, each in enumerate(body.messages)]
    made = await begin_chat(call, model, ask_of(model, body, messages, body.tools))
    scores = Scores(model, made.streams[0], wanted=bool(body.logprobs))
    if body.stream is not False:
        return Stream(_lines(made, scores, clock), NDJSON, error_line, call)
    (answered,) = await made.whole()
    return last(model, answered.completion, clock, message=_message(answered.reply), logprobs=scores.whole())


def _message(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        found["thinking"] = reply.reasoning
    if reply.calls:
        found["tool_calls"] = [
            {"id": each.id, "function": {"index": at, "name": each.name, "arguments": json.loads(each.arguments)}}
            for at, each in enumerate(reply.calls)
        ]
    return found


def _told(delta: Delta, reply: Reply) -> dict[str, Any] | None:
    """Something new, as a line's message; None for what Ollama has no words for: it tells a call when it is whole."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if isinstance(delta, Content):
        return message | {"content": delta.text}
    if isinstance(delta, Reasoning):
        return message | {"thinking": delta.text}
    if isinstance(delta, CallEnded):
        return message | {"tool_calls": [_message(reply)["tool_calls"][delta.index]]}
    return None


async def _lines(made: Chat, scores: Scores, clock: Clock) -> AsyncGenerator[bytes, None]:
    name, reply = made.model.name, Reply()
    empty = {"role": "assistant", "content": ""}
    async for said in made.said():
        reply.add(said.deltas)
        logprobs = scores.of(said.piece)
        told = [message for delta in said.deltas if (message := _told(delta, reply)) is not None]
        for message in told or ([empty] if logprobs else []):
            yield encoded(OllamaReply(name, now(), False, message=message, logprobs=logprobs)) + b"\n"
            logprobs = None
        if said.piece.completion is not None:
            yield encoded(last(made.model, said.piece.completion, clock, message=empty)) + b"\n"


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/api/chat",
        chat,
        body=OllamaChatRequest,
        reply=OllamaReply,
        streams=NDJSON,
        shape=ollama_shape,
        tag="Ollama",
    )
]
