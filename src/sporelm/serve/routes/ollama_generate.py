"""/api/generate: Ollama's completion API. A prompt is answered as a chat of one message, or continued as it is."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from sporelm.api.completion import Completion
from sporelm.api.sampling_params import SamplingParams
from sporelm.api.text_generation import TextGeneration
from sporelm.errors import RequestError
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_stream import ChatStream, start_chat
from sporelm.serve.chat.fim import fim_tokens
from sporelm.serve.chat.image_parts import ollama_content
from sporelm.serve.chat.ollama_options import max_tokens_from_options, model_name_from_ollama
from sporelm.serve.chat.ollama_replies import (
    NDJSON,
    OllamaFields,
    OllamaReply,
    Stopwatch,
    last_reply,
    ollama_chat_request,
    ollama_error_line,
    ollama_sampling,
    timestamp,
)
from sporelm.serve.chat.token_logprobs import ChatLogprobs
from sporelm.serve.chat.token_usage import check_finished
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ollama_error_body
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.serve.model_pool.keep_alive import KeepAlive
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.text.dialects import Content, Reasoning
from sporelm.text.fim_tokens import encode_fim_prompt


class OllamaGenerateRequest(OllamaFields, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None  # base64


def check_supported(body: OllamaGenerateRequest) -> None:
    """Raise RequestError for fields that are not supported, or not together."""
    if body.template:
        raise RequestError(
            "template is not supported: the model's own is used; with raw the prompt is taken as it is; leave it out"
        )
    for one, others in (("raw", ("system", "context", "images")), ("suffix", ("system", "context", "think", "images"))):
        for other in others:
            if getattr(body, one) and getattr(body, other):
                raise RequestError(
                    f"{one} and {other} are given together: with {one} the prompt is not a chat; leave out one"
                )
    if body.context and body.images:
        raise RequestError("context and images are given together: send the whole chat to /api/chat; leave out one")


async def generate(call: ApiCall, body: OllamaGenerateRequest) -> Response | OllamaReply:
    """The answer to a prompt and its images, as a chat of one message that continues `context`. With `raw`, or a model
    without a template, the prompt is continued as it is; with `suffix` the gap between both is filled. Without a prompt
    the model is only loaded, or unloaded if `keep_alive` is 0."""
    check_supported(body)
    stopwatch = Stopwatch()
    name = model_name_from_ollama(call.server.models, body.model)
    keep_alive = KeepAlive(call, name, body.keep_alive)
    if not body.prompt and not body.suffix and not body.images:
        reason = await keep_alive.load_or_unload()
        return OllamaReply(keep_alive.name, timestamp(), True, response="", done_reason=reason)
    model = await call.model(name)
    stopwatch.mark_loaded()
    if body.images and model.llm.tokenizer.chat_template is None:
        raise RequestError("images cannot be placed in a prompt: this model has no chat template; leave them out")
    if body.raw or body.suffix or model.llm.tokenizer.chat_template is None:
        replies = _completion_replies(call, model, body, stopwatch)
    else:
        messages: list[dict[str, Any]] = [{"role": "system", "content": body.system}] if body.system else []
        prompt = body.prompt or ""
        content = await run_in_thread_if(call.is_large, lambda: ollama_content(prompt, body.images, "images"))
        messages.append({"role": "user", "content": content})
        request = ollama_chat_request(model, body, messages, context_ids=body.context or ())
        stream = await start_chat(call, model, request)
        logprobs = ChatLogprobs(model, stream.streams[0], enabled=bool(body.logprobs))
        replies = _chat_replies(stream, logprobs, stopwatch, returns_context=not body.images)
    if body.stream is not False:
        first = await anext(replies)
        return StreamedResponse(_lines(first, replies), NDJSON, ollama_error_line, call)
    return await _join(replies)


async def _join(replies: AsyncGenerator[OllamaReply, None]) -> OllamaReply:
    """Return the last reply, with the text and log probabilities of all."""
    text = []
    thinking = []
    entries = []
    last = None
    async for reply in replies:
        text.append(reply.response or "")
        thinking.append(reply.thinking or "")
        entries += reply.logprobs or []
        last = reply
    assert last is not None
    last.response = "".join(text)
    last.thinking = "".join(thinking) or None
    last.logprobs = entries or None
    return last


async def _lines(first: OllamaReply, replies: AsyncGenerator[OllamaReply, None]) -> AsyncGenerator[bytes, None]:
    yield encode_json(first) + b"\n"
    async for reply in replies:
        yield encode_json(reply) + b"\n"


def _context_ids(completion: Completion) -> list[int]:
    """Return the `context` with which the next request continues."""
    return [*completion.prompt_token_ids, *completion.token_ids]


async def _chat_replies(
    stream: ChatStream, chat_logprobs: ChatLogprobs, stopwatch: Stopwatch, *, returns_context: bool
) -> AsyncGenerator[OllamaReply, None]:
    """Yield an answer. A chat with images has no `context`: ids alone cannot bring the images back."""
    name = stream.model.name
    async for chunk in stream.chunks():
        content = "".join(delta.text for delta in chunk.deltas if isinstance(delta, Content))
        thinking = "".join(delta.text for delta in chunk.deltas if isinstance(delta, Reasoning))
        logprobs = chat_logprobs.of_piece(chunk.piece)
        if content or thinking or logprobs:
            yield OllamaReply(name, timestamp(), False, response=content, thinking=thinking or None, logprobs=logprobs)
        completion = chunk.piece.completion
        if completion is not None:
            context = _context_ids(completion) if returns_context else None
            yield last_reply(stream.model, completion, stopwatch, response="", context=context)


async def _completion_replies(
    call: ApiCall, model: ServedModel, body: OllamaGenerateRequest, stopwatch: Stopwatch
) -> AsyncGenerator[OllamaReply, None]:
    llm = model.llm
    sampling = ollama_sampling(body, llm.max_context)
    max_tokens = max_tokens_from_options(body.options or {})
    call.check_chat_size(1, max_tokens)
    text = f"{body.system}\n\n{body.prompt}" if body.system else body.prompt or ""
    fim = fim_tokens(model) if body.suffix else None
    if fim is not None:
        sampling["stop_token_ids"] = sorted(fim.stop_ids)

    await model.async_llm.isolation.try_grammar(sampling.get("grammar"), call.key.cache_salt)

    def prepare() -> list[TextGeneration]:
        if fim is not None:
            ids = encode_fim_prompt(llm.tokenizer, fim, text, body.suffix or "")
        else:
            ids = [*(body.context or ()), *llm.prompt_ids(text)]
        limit = call.answer_limit(llm.max_context, len(ids), max_tokens)
        params = SamplingParams(**{**sampling, "max_tokens": limit, "salt": call.key.cache_salt})
        return llm.prepare_generations(ids, params)

    (stream,) = await call.start(model, await run_in_thread_if(call.is_large or "grammar" in sampling, prepare))
    chat_logprobs = ChatLogprobs(model, stream, enabled=bool(body.logprobs))
    async for piece in stream.pieces():
        logprobs = chat_logprobs.of_piece(piece)
        if piece.text or logprobs:
            yield OllamaReply(model.name, timestamp(), False, response=piece.text, logprobs=logprobs)
        completion = piece.completion
        if completion is not None:
            check_finished(completion, has_grammar=stream.has_grammar)
            context = None if body.raw or fim is not None else _context_ids(completion)
            yield last_reply(model, completion, stopwatch, response="", context=context)


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/api/generate",
        generate,
        body=OllamaGenerateRequest,
        takes_images=True,
        reply=OllamaReply,
        stream_media_type=NDJSON,
        error_format=ollama_error_body,
        tag="Ollama",
    )
]
