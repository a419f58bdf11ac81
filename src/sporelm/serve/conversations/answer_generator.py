"""AnswerGenerator: generates answers of the web chat with the server's models, through the chat API's own code."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from sporelm.errors import ContextOverflow, QueueFull, RequestError
from sporelm.serve.chat.chat_stream import ChatChunk, ChatRequest, ChatStream, start_chat
from sporelm.serve.chat.image_parts import has_images
from sporelm.serve.chat.sampling_fields import sampling_from
from sporelm.serve.chat.token_usage import timings_of
from sporelm.serve.conversations.answer_job import AnswerFailed, AnswerRequest
from sporelm.serve.conversations.answer_settings import parse_settings
from sporelm.serve.conversations.answer_stats import Progress
from sporelm.serve.http.api_call import LARGE_BYTES, ApiCall
from sporelm.serve.http.api_errors import RETRY_SECONDS
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.text.dialects import Content, Reasoning

if TYPE_CHECKING:
    from sporelm.serve.server_state import Server

STATUS_SECONDS = 1.0  # between two reports of the queue before the first token


class AnswerGenerator:
    """Generates answers with a server's models, on behalf of an API key."""

    def __init__(self, server: "Server", key: ApiKey) -> None:
        self.server = server
        self.key = key

    async def __call__(self, request: AnswerRequest) -> AsyncGenerator[Progress, None]:
        """Yield an answer as it is generated, and its queue status before the first token, within `request_seconds`.

        Raises AnswerFailed.
        """
        async with AsyncExitStack() as resources:
            call = ApiCall(self.server, self.key, resources, token_hex(8))
            sees_images = has_images(request.messages)
            call.is_large = sees_images or sum(len(each["content"]) for each in request.messages) > LARGE_BYTES
            try:
                async with call.before_deadline():
                    yield Progress(status="waiting")
                    if self.server.models.loaded_model(request.model) is None:
                        yield Progress(status="loading")
                    model = await call.model(request.model)
                    yield Progress(status="waiting")
                    check_template(model)
                    if sees_images and not model.can_see:
                        raise AnswerFailed({"code": "cannot_see", "model": model.name})
                    while True:
                        try:
                            chat = await start_chat(call, model, chat_request(request))
                            break
                        except QueueFull:
                            yield Progress(status="busy", retry=RETRY_SECONDS)
                            await asyncio.sleep(RETRY_SECONDS)
                    async with aclosing(_progress(model, chat)) as increments:
                        async for each in increments:
                            yield each
            except AnswerFailed:
                raise
            except TimeoutError:
                seconds = self.server.config.request_seconds
                raise AnswerFailed({"code": "request_timeout", "seconds": seconds}) from None
            except Exception as error:
                raise AnswerFailed(stored_error(call, error)) from error


def check_template(model: ServedModel) -> None:
    """Raise AnswerFailed for a model that has no chat template or does not generate text."""
    try:
        _ = model.llm.template
    except RequestError as reason:
        raise AnswerFailed({"code": "no_chat_template", "model": model.name, "detail": str(reason)[:1000]}) from None


def chat_request(request: AnswerRequest) -> ChatRequest:
    """Return the request in the terms of all APIs. Raises RequestError for settings that the chat API refuses."""
    settings = parse_settings(request.settings)
    return ChatRequest(
        messages=request.messages,
        continue_last=request.continue_last,
        sampling=sampling_from(settings),
        max_tokens=settings.max_tokens,
    )


async def _progress(model: ServedModel, chat: ChatStream) -> AsyncGenerator[Progress, None]:
    """Yield a chat's answer, and until its first token the number of requests that wait for the model."""
    async with aclosing(chat.chunks()) as chunks:
        first = asyncio.ensure_future(anext(chunks))
        try:
            while not (await asyncio.wait({first}, timeout=STATUS_SECONDS))[0]:
                yield Progress(status="waiting", others=model.async_llm.num_waiting)
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
        yield _increment(chat, first.result())
        async for chunk in chunks:
            yield _increment(chat, chunk)


def _increment(chat: ChatStream, chunk: ChatChunk) -> Progress:
    """Return a chunk of an answer with the counts up to it."""
    answer = chat.streams[0].answer
    completion = chunk.piece.completion
    return Progress(
        content="".join(delta.text for delta in chunk.deltas if isinstance(delta, Content)),
        reasoning="".join(delta.text for delta in chunk.deltas if isinstance(delta, Reasoning)),
        prompt_tokens=answer.num_prompt_tokens,
        completion_tokens=len(answer.token_ids),
        cached_tokens=answer.cached_tokens,
        tokens_per_s=0.0 if completion is None else timings_of(completion).decode_tok_s,
        finish=None if completion is None else chat.finish_reason(0),
    )


def stored_error(call: ApiCall, error: Exception) -> dict[str, Any]:
    """Return an error as it is stored with an answer: a code, its parameters, and in `detail` the server's message."""
    if isinstance(error, ContextOverflow) and error.context:
        fields: dict[str, Any] = {"code": "context_length_exceeded", "context": error.context}
        return fields | ({"tokens": error.tokens} if error.tokens else {})
    response = call.error_from(error)
    code = response.code if response.code is not None else "refused" if response.status < 500 else "internal_error"
    return {"code": code, "detail": response.message[:1000]}
