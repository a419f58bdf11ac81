"""Generate answers of the web chat with this server's models, through the chat API's own code."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from sporelm.errors import ContextOverflow, QueueFull, RequestError
from sporelm.serve.chat import Chat, ChatAsk, Said, begin_chat
from sporelm.serve.conversation_jobs import AnswerFailed, AnswerRequest, Progress
from sporelm.serve.endpoint import LARGE, Call
from sporelm.serve.failures import RETRY_SECONDS, Refusal
from sporelm.serve.keys import ApiKey
from sporelm.serve.reading import Content, Reasoning
from sporelm.serve.sampling import SamplingBody, fields_of
from sporelm.serve.served_model import ServedModel
from sporelm.serve.usage import figures_of

if TYPE_CHECKING:
    from sporelm.serve.server import Server

LOOK_SECONDS = 1.0  # between two looks at the queue before the first word


class AnswerSettings(SamplingBody, kw_only=True):
    """The settings of a conversation."""

    max_tokens: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None


class EngineAnswers:
    """Generates answers with a server's models, on behalf of a request's API key."""

    def __init__(self, server: "Server", key: ApiKey) -> None:
        self.server, self.key = server, key

    async def __call__(self, asked: AnswerRequest) -> AsyncGenerator[Progress, None]:
        """Yield an answer as it is generated, and its queue status before the first token, within `request_seconds`.

        Raises AnswerFailed.
        """
        async with AsyncExitStack() as opened:
            call = Call(self.server, self.key, opened, token_hex(8))
            call.large = sum(len(each["content"]) for each in asked.messages) > LARGE
            try:
                async with call.in_time():
                    yield Progress(status="waiting")
                    if self.server.models.at_hand(asked.model) is None:
                        yield Progress(status="loading")
                    model = await call.model(asked.model)
                    yield Progress(status="waiting")
                    check_template(model)
                    while True:
                        try:
                            chat = await begin_chat(call, model, chat_ask(asked))
                            break
                        except QueueFull:
                            yield Progress(status="busy", retry=RETRY_SECONDS)
                            await asyncio.sleep(RETRY_SECONDS)
                    async with aclosing(_progress(model, chat)) as news:
                        async for each in news:
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
        _ = model.llm.llm.template
    except RequestError as reason:
        raise AnswerFailed({"code": "no_chat_template", "model": model.name, "detail": str(reason)[:1000]}) from None


def chat_ask(asked: AnswerRequest) -> ChatAsk:
    """Return the request as one of the chat API. Raises RequestError for settings that the API refuses."""
    try:
        settings = msgspec.convert(asked.settings, AnswerSettings)
    except msgspec.ValidationError as reason:
        raise RequestError(f"the settings of the conversation are refused: {reason}") from None
    return ChatAsk(
        messages=asked.messages,
        goes_on=asked.continues,
        sampling=fields_of(settings),
        max_tokens=settings.max_tokens,
    )


async def _progress(model: ServedModel, chat: Chat) -> AsyncGenerator[Progress, None]:
    """Yield a chat's answer, and until its first token the number of requests that wait for the model."""
    queue = model.llm.llm.engine.scheduler.waiting
    async with aclosing(chat.said()) as pieces:
        first = asyncio.ensure_future(anext(pieces))
        try:
            while not (await asyncio.wait({first}, timeout=LOOK_SECONDS))[0]:
                yield Progress(status="waiting", others=len(queue))
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
        yield _news(chat, first.result())
        async for said in pieces:
            yield _news(chat, said)


def _news(chat: Chat, said: Said) -> Progress:
    """Return a piece of an answer with the counts up to it."""
    answer, completion = chat.streams[0].answer, said.piece.completion
    return Progress(
        content="".join(delta.text for delta in said.deltas if isinstance(delta, Content)),
        reasoning="".join(delta.text for delta in said.deltas if isinstance(delta, Reasoning)),
        prompt_tokens=answer.request.num_prompt,
        completion_tokens=len(answer.token_ids),
        cached_tokens=answer.request.cached_tokens,
        tokens_per_s=0.0 if completion is None else figures_of(completion).decode_tok_s,
        finish=None if completion is None else chat.finish_reason(0),
    )


def stored_error(call: Call, error: Exception) -> dict[str, Any]:
    """Return an error as it is stored with an answer: a code, its parameters, and in `detail` the server's sentence."""
    if isinstance(error, ContextOverflow) and error.context:
        found: dict[str, Any] = {"code": "context_length_exceeded", "context": error.context}
        return found | ({"tokens": error.tokens} if error.tokens else {})
    refusal: Refusal = call.refused(error)
    code = refusal.code if refusal.code is not None else "refused" if refusal.status < 500 else "internal_error"
    return {"code": code, "detail": refusal.message[:1000]}
