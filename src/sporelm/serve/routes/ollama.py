"""/api/chat and /api/generate, as Ollama's clients speak them: JSON, or a line of JSON for each piece."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any

import msgspec
from starlette.responses import Response

from sporelm.api.completion import Completion
from sporelm.api.params import SamplingParams
from sporelm.errors import RequestError
from sporelm.serve.answering import in_thread_if
from sporelm.serve.chat import LARGE, Chat, ChatAsk, begin_chat
from sporelm.serve.endpoint import Body, Call, Endpoint, Stream, encoded
from sporelm.serve.failures import Refusal, ollama_shape
from sporelm.serve.models import ServedModel
from sporelm.serve.ollama_options import grammar_of, named, tokens_of, translated
from sporelm.serve.reading import Arguments, CallBegun, CallEnded, Content, Reasoning, Reply
from sporelm.serve.usage import check_finished

NDJSON = "application/x-ndjson"


class OllamaMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str
    content: str | None = ""
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Asked(Body, kw_only=True):
    """What both requests have."""

    model: str = ""
    stream: bool = True
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatRequest(Asked, kw_only=True):
    messages: list[OllamaMessage] = []
    tools: list[dict[str, Any]] | None = None


class GenerateRequest(Asked, kw_only=True):
    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None


class OllamaReply(msgspec.Struct, omit_defaults=True):
    """A piece of an answer, or all of it; times are nanoseconds."""

    model: str
    created_at: str
    done: bool
    message: dict[str, Any] | None = None
    response: str | None = None
    thinking: str | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


def now() -> str:
    """The time, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def last(model: ServedModel, completion: Completion, reason: str, began: int, **said: Any) -> OllamaReply:
    """The end of an answer, with its figures."""
    timings = completion.timings
    made = len(completion.token_ids)
    decoding = (made - 1) / timings.decode_tok_s if timings.decode_tok_s else 0.0
    return OllamaReply(
        model.name,
        now(),
        True,
        done_reason=reason,
        total_duration=perf_counter_ns() - began,
        load_duration=0,
        prompt_eval_count=len(completion.prompt_token_ids),
        prompt_eval_duration=int(timings.ttft_s * 1e9),
        eval_count=made,
        eval_duration=int(decoding * 1e9),
        **said,
    )


def _check(body: Asked) -> None:
    if body.logprobs or body.top_logprobs:
        raise RequestError("log probabilities cannot be had here: ask /v1/chat/completions or /v1/completions")


def ask_of(body: Asked, messages: list[dict[str, Any]], max_context: int) -> ChatAsk:
    """A chat as a request wants it. Raises RequestError."""
    sampling = translated(body.options or {}, max_context)
    grammar = grammar_of(body.format)
    if grammar is not None:
        sampling["grammar"] = grammar
    variables: dict[str, Any] = {}
    if isinstance(body.think, bool):
        variables["enable_thinking"] = body.think
    elif body.think is not None:
        variables["reasoning_effort"] = body.think
    tools = body.tools if isinstance(body, OllamaChatRequest) else None
    return ChatAsk(
        messages=messages,
        sampling=sampling,
        max_tokens=tokens_of(body.options or {}),
        tools=tools or None,
        variables=variables,
    )


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
    """The answer to a chat, in lines unless `stream` is false. Without messages the model is just loaded."""
    _check(body)
    began = perf_counter_ns()
    model = await call.model(named(call.server.models, body.model))
    if not body.messages:
        return OllamaReply(model.name, now(), True, message={"role": "assistant", "content": ""}, done_reason="load")
    messages = [message_of(each, index) for index, each in enumerate(body.messages)]
    made = await begin_chat(call, model, ask_of(body, messages, model.llm.llm.max_context))
    if body.stream:
        return Stream(_chat_lines(made, began), NDJSON, _error_line, call)
    (answered,) = await made.whole()
    return last(model, answered.completion, _reason(answered.finish_reason), began, message=_message(answered.reply))


def _message(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        found["thinking"] = reply.reasoning
    if reply.calls:
        found["tool_calls"] = [
            {"function": {"name": each.name, "arguments": json.loads(each.arguments)}} for each in reply.calls
        ]
    return found


def _reason(reason: str) -> str:
    return "length" if reason == "length" else "stop"  # Ollama has no word for an end with calls


def _error_line(refusal: Refusal) -> bytes:
    return encoded(ollama_shape(refusal)) + b"\n"


async def _chat_lines(made: Chat, began: int) -> AsyncIterator[bytes]:
    name, reply = made.model.name, Reply()
    async for said in made.said():
        reply.add(said.deltas)
        for delta in said.deltas:
            message: dict[str, Any] = {"role": "assistant", "content": ""}
            if isinstance(delta, Content):
                message["content"] = delta.text
            elif isinstance(delta, Reasoning):
                message["thinking"] = delta.text
            elif isinstance(delta, CallEnded):  # Ollama tells a call when it is whole
                message |= {"tool_calls": _message(Reply(calls=[reply.calls[delta.index]]))["tool_calls"]}
            elif isinstance(delta, CallBegun | Arguments):
                continue
            yield encoded({"model": name, "created_at": now(), "message": message, "done": False}) + b"\n"
        if said.piece.completion is not None:
            reason = _reason(made.finish_reason(0))
            empty = {"role": "assistant", "content": ""}
            yield encoded(last(made.model, said.piece.completion, reason, began, message=empty)) + b"\n"


async def generate(call: Call, body: GenerateRequest) -> Response | OllamaReply:
    """A prompt, answered as a chat of one message; with `raw`, or by a model without a template, just continued."""
    _check(body)
    for name in ("suffix", "template", "context", "images"):
        if getattr(body, name):
            raise RequestError(f"{name} cannot be had: leave it out" + (", or ask /api/chat" * (name == "context")))
    began = perf_counter_ns()
    model = await call.model(named(call.server.models, body.model))
    if not body.prompt:
        return OllamaReply(model.name, now(), True, response="", done_reason="load")
    if body.raw or model.llm.llm.tokenizer.chat_template is None:
        pieces = _continued(call, model, body, began)
    else:
        messages = [{"role": "system", "content": body.system}] if body.system else []
        asked = ask_of(body, [*messages, {"role": "user", "content": body.prompt}], model.llm.llm.max_context)
        pieces = _answered(await begin_chat(call, model, asked), began)
    if body.stream:
        first = await anext(pieces)
        return Stream(_lines(first, pieces), NDJSON, _error_line, call)
    text, thinking, end = [], [], None
    async for piece in pieces:
        text.append(piece.response or "")
        thinking.append(piece.thinking or "")
        end = piece
    assert end is not None
    end.response, end.thinking = "".join(text), "".join(thinking) or None
    return end


async def _lines(first: OllamaReply, pieces: AsyncGenerator[OllamaReply, None]) -> AsyncIterator[bytes]:
    yield encoded(first) + b"\n"
    async for piece in pieces:
        yield encoded(piece) + b"\n"


async def _answered(made: Chat, began: int) -> AsyncGenerator[OllamaReply, None]:
    async for said in made.said():
        content = "".join(delta.text for delta in said.deltas if isinstance(delta, Content))
        thinking = "".join(delta.text for delta in said.deltas if isinstance(delta, Reasoning))
        if content or thinking:
            yield OllamaReply(made.model.name, now(), False, response=content, thinking=thinking or None)
        if said.piece.completion is not None:
            yield last(made.model, said.piece.completion, _reason(made.finish_reason(0)), began, response="")


async def _continued(
    call: Call, model: ServedModel, body: GenerateRequest, began: int
) -> AsyncGenerator[OllamaReply, None]:
    llm = model.llm.llm
    ask = ask_of(body, [], llm.max_context)
    call.check_size(1, ask.max_tokens)
    text = body.prompt if body.raw or not body.system else f"{body.system}\n\n{body.prompt}"

    def prepare() -> Any:
        ids = llm.prompt_ids(text)
        length = call.room(llm.max_context, len(ids), ask.max_tokens)
        params = SamplingParams(**{**ask.sampling, "max_tokens": length, "salt": call.key.salt})
        return llm.several_answers(ids, params)

    (stream,) = await call.begin(model, await in_thread_if(len(text) > LARGE or "grammar" in ask.sampling, prepare))
    async for piece in stream.pieces():
        if piece.text:
            yield OllamaReply(model.name, now(), False, response=piece.text)
        if piece.completion is not None:
            check_finished(piece.completion, constrained=stream.constrained)
            yield last(model, piece.completion, _reason(str(piece.finish_reason)), began, response="")


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", path, handler, body=body, reply=OllamaReply, streams=NDJSON, shape=ollama_shape, tag="Ollama")
    for path, handler, body in (
        ("/api/chat", chat, OllamaChatRequest),
        ("/api/generate", generate, GenerateRequest),
    )
]
