"""/api/generate, as Ollama's clients speak it: a prompt answered as a chat of one message, or just continued."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from sporelm.api.answer import Answer
from sporelm.api.completion import Completion
from sporelm.api.params import SamplingParams
from sporelm.errors import RequestError
from sporelm.serve.answering import in_thread_if
from sporelm.serve.chat import Chat, begin_chat
from sporelm.serve.endpoint import Call, Endpoint, Stream, encoded
from sporelm.serve.failures import ollama_shape
from sporelm.serve.filling import gap_of
from sporelm.serve.keeping import Keeping
from sporelm.serve.ollama_options import named, tokens_of
from sporelm.serve.ollama_replies import (
    NDJSON,
    Asked,
    Clock,
    OllamaReply,
    ask_of,
    error_line,
    last,
    now,
    sampling_of,
)
from sporelm.serve.reading import Content, Reasoning
from sporelm.serve.scores import Scores
from sporelm.serve.served_model import ServedModel
from sporelm.serve.usage import check_finished
from sporelm.text.filling import filling_prompt


class GenerateRequest(Asked, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None


def check(body: GenerateRequest) -> None:
    """Raise RequestError for what cannot be had, or not together."""
    for name, why in (
        ("template", "the model's own is used; with raw the prompt is taken as it stands"),
        ("images", "no model of this server can see"),
    ):
        if getattr(body, name):
            raise RequestError(f"{name} cannot be had: {why}; leave it out")
    for one, others in (("raw", ("system", "context")), ("suffix", ("system", "context", "think"))):
        for other in others:
            if getattr(body, one) and getattr(body, other):
                raise RequestError(f"{one} and {other} are given together: with {one} no chat is made; leave out one")


async def generate(call: Call, body: GenerateRequest) -> Response | OllamaReply:
    """A prompt, answered as a chat of one message, which goes on from `context` where that is given; with `raw`, or by
    a model without a template, just continued; with `suffix` the gap between both is filled. Without a prompt the model
    is just loaded, or unloaded where `keep_alive` is 0."""
    check(body)
    clock, name = Clock(), named(call.server.models, body.model)
    keeping = Keeping(call, name, body.keep_alive)
    if not body.prompt and not body.suffix:
        reason = await keeping.alone()
        return OllamaReply(keeping.name, now(), True, response="", done_reason=reason)
    model = await call.model(name)
    clock.lap()
    if body.raw or body.suffix or model.llm.llm.tokenizer.chat_template is None:
        pieces = _continued(call, model, body, clock)
    else:
        messages = [{"role": "system", "content": body.system}] if body.system else []
        messages.append({"role": "user", "content": body.prompt or ""})
        made = await begin_chat(call, model, ask_of(model, body, messages, before=body.context or ()))
        pieces = _answered(made, Scores(model, made.streams[0], wanted=bool(body.logprobs)), clock)
    if body.stream is not False:
        first = await anext(pieces)
        return Stream(_lines(first, pieces), NDJSON, error_line, call)
    text, thinking, logprobs, end = [], [], [], None
    async for piece in pieces:
        text.append(piece.response or "")
        thinking.append(piece.thinking or "")
        logprobs += piece.logprobs or []
        end = piece
    assert end is not None
    end.response, end.thinking, end.logprobs = "".join(text), "".join(thinking) or None, logprobs or None
    return end


async def _lines(first: OllamaReply, pieces: AsyncGenerator[OllamaReply, None]) -> AsyncGenerator[bytes, None]:
    yield encoded(first) + b"\n"
    async for piece in pieces:
        yield encoded(piece) + b"\n"


def _context(completion: Completion) -> list[int]:
    """What the next request gives back so that it goes on from here."""
    return [*completion.prompt_token_ids, *completion.token_ids]


async def _answered(made: Chat, scores: Scores, clock: Clock) -> AsyncGenerator[OllamaReply, None]:
    name = made.model.name
    async for said in made.said():
        content = "".join(delta.text for delta in said.deltas if isinstance(delta, Content))
        thinking = "".join(delta.text for delta in said.deltas if isinstance(delta, Reasoning))
        logprobs = scores.of(said.piece)
        if content or thinking or logprobs:
            yield OllamaReply(name, now(), False, response=content, thinking=thinking or None, logprobs=logprobs)
        done = said.piece.completion
        if done is not None:
            yield last(made.model, done, clock, response="", context=_context(done))


async def _continued(
    call: Call, model: ServedModel, body: GenerateRequest, clock: Clock
) -> AsyncGenerator[OllamaReply, None]:
    llm = model.llm.llm
    sampling, tokens = sampling_of(body, llm.max_context), tokens_of(body.options or {})
    call.check_size(1, tokens)
    text = f"{body.system}\n\n{body.prompt}" if body.system else body.prompt or ""
    gap = gap_of(model) if body.suffix else None
    if gap is not None:
        sampling["stop_token_ids"] = sorted(gap.ends)

    await model.llm.isolation.try_grammar(sampling.get("grammar"))

    def prepare() -> list[Answer]:
        if gap is not None:
            ids = filling_prompt(llm.tokenizer, gap, text, body.suffix or "")
        else:
            ids = [*(body.context or ()), *llm.prompt_ids(text)]
        length = call.room(llm.max_context, len(ids), tokens)
        params = SamplingParams(**{**sampling, "max_tokens": length, "salt": call.key.salt})
        return llm.several_answers(ids, params)

    (stream,) = await call.begin(model, await in_thread_if(call.large or "grammar" in sampling, prepare))
    scores = Scores(model, stream, wanted=bool(body.logprobs))
    async for piece in stream.pieces():
        logprobs = scores.of(piece)
        if piece.text or logprobs:
            yield OllamaReply(model.name, now(), False, response=piece.text, logprobs=logprobs)
        done = piece.completion
        if done is not None:
            check_finished(done, constrained=stream.constrained)
            context = None if body.raw or gap is not None else _context(done)
            yield last(model, done, clock, response="", context=context)


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/api/generate",
        generate,
        body=GenerateRequest,
        reply=OllamaReply,
        streams=NDJSON,
        shape=ollama_shape,
        tag="Ollama",
    )
]
