"""/v1/completions: raw text or token ids, continued."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from time import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sporelm.api.answer import Answer
from sporelm.api.completion import Completion
from sporelm.api.llm import LLM
from sporelm.api.open_model import Prompt
from sporelm.api.params import SamplingParams
from sporelm.errors import RequestError
from sporelm.serve.answering import AnswerStream, in_thread_if
from sporelm.serve.endpoint import Call, Endpoint, Stream, encoded
from sporelm.serve.events import openai_error, sse
from sporelm.serve.failures import Refusal
from sporelm.serve.filling import gap_of
from sporelm.serve.forms import answer_form
from sporelm.serve.many import News, each_of
from sporelm.serve.prompt_scores import PromptScores, prompt_scores
from sporelm.serve.routes.openai_chat import StreamOptions
from sporelm.serve.sampling import SamplingBody, fields_of
from sporelm.serve.scores import TextLogprobs, TextScores
from sporelm.serve.served_model import ServedModel
from sporelm.serve.usage import Figures, PromptDetails, Usage, figures_of, usage_of
from sporelm.text.filling import GapTokens, filling_prompt

DEFAULT_TOKENS = 16  # of an answer, as OpenAI's API has it
MOST_SCORES = 1 << 20  # log probabilities of prompts, of about 100 bytes each: all are held until the last is known


class CompletionRequest(SamplingBody, kw_only=True):
    """`prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    response_format: dict[str, Any] | None = None


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: TextLogprobs | None = None


class TextCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    timings: Figures | None = None
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None


class Asked:
    """A request's prompts as ids, and how they are to be continued."""

    def __init__(self, call: Call, model: ServedModel, body: CompletionRequest, prompts: list[list[int]]) -> None:
        """Raises RequestError, ContextOverflow for any of the prompts, before the first one is begun."""
        self.model, self.body, self.prompts = model, body, prompts
        self.llm: LLM = model.llm.llm
        sampling = fields_of(body)
        if body.logprobs is not None:
            sampling["logprobs"] = body.logprobs
        grammar = answer_form(body.response_format, body.grammar)
        if grammar is not None:
            sampling["grammar"] = grammar
        if body.suffix:
            sampling["stop_token_ids"] = [*sampling.get("stop_token_ids", ()), *sorted(gap_of(model).ends)]
        tokens = DEFAULT_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
        self.params = SamplingParams(
            **sampling, max_tokens=tokens, salt=call.key.salt, n=body.n or 1, best_of=body.best_of
        )
        for ids in prompts:
            self.llm.engine.limits.check_prompt(len(ids))
        self.constrained = grammar is not None

    def answers(self, at: int) -> list[Answer]:
        """The answers to one prompt, to be begun."""
        return self.llm.several_answers(self.prompts[at], self.params)

    def news(self, call: Call) -> AsyncGenerator[News, None]:
        """The pieces of all answers, as they come; to be closed."""
        count, large = len(self.prompts), self.constrained
        return each_of(call, self.model, self.answers, count, self.params.made, large=large)

    def index(self, prompt: int, number: int) -> int:
        """Where an answer stands among all."""
        return prompt * self.params.n + number


def prompts_of(
    prompt: str | Sequence[str | int | list[int]], llm: LLM, ids_of: Callable[[Prompt], list[int]] | None = None
) -> list[list[int]]:
    """The ids of all prompts, by `LLM.prompt_ids` unless `ids_of` is given. Raises RequestError."""
    ids_of = ids_of or llm.prompt_ids
    if isinstance(prompt, str):
        return [ids_of(prompt)]
    if not prompt:
        raise RequestError("prompt is an empty list: give a text, token ids, or a list of them")
    if all(isinstance(each, int) for each in prompt):
        return [ids_of(prompt)]  # type: ignore[arg-type]
    if any(isinstance(each, int) for each in prompt):
        raise RequestError("prompt has token ids among texts or lists: give one kind")
    return [ids_of(each) for each in prompt]  # type: ignore[arg-type]


def gap_prompts(body: CompletionRequest, llm: LLM, gap: GapTokens) -> list[list[int]]:
    """The ids that ask for what is between each prompt and the suffix. Raises RequestError."""
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    ids = prompts_of(body.prompt, llm)
    befores = texts if all(isinstance(text, str) for text in texts) else ids
    return [filling_prompt(llm.tokenizer, gap, before, body.suffix or "") for before in befores]  # type: ignore[arg-type]


async def completions(call: Call, body: CompletionRequest) -> Response | TextCompletion:
    """Prompts continued, whole or in pieces. A list is worked off a few prompts at a time."""
    _check(call, body)
    model = await call.model(body.model)
    llm = model.llm.llm
    if body.suffix:
        gap = gap_of(model)
        prompts = await in_thread_if(call.large, lambda: gap_prompts(body, llm, gap))
    else:
        prompts = await in_thread_if(call.large, lambda: prompts_of(body.prompt, llm))
    asked = Asked(call, model, body, prompts)
    await model.llm.isolation.try_grammar(asked.params.grammar)
    number, created = f"cmpl-{call.request_id}", int(time())
    told: list[PromptScores | None] = [None] * len(prompts)
    if body.echo and body.logprobs is not None:
        _check_scores(sum(map(len, prompts)), 1 + body.logprobs)
        told = [await prompt_scores(model, ids, body.logprobs, body.adapter) for ids in prompts]
    if body.max_tokens == 0:
        return _echoed(asked, told, number, created)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return Stream(_chunks(call, asked, told, number, created, usage), "text/event-stream", openai_error, call)
    done: list[list[AnswerStream | None]] = [[None] * asked.params.made for _ in prompts]
    async with aclosing(asked.news(call)) as news:
        async for at, which, piece, stream in news:
            if piece.completion is not None:
                done[at][which] = stream
    choices, groups = [], []
    for at, streams in enumerate(done):
        best = _best(asked, [stream for stream in streams if stream is not None])
        groups.append([stream.answer.completion(llm.timings) for stream in best])
        choices += [_choice(asked, at, which, stream, told[at]) for which, stream in enumerate(best)]
    figures = figures_of(groups[0][0])
    return TextCompletion(
        number, created, model.name, choices, usage_of(groups), figures, system_fingerprint=model.fingerprint
    )


def _check(call: Call, body: CompletionRequest) -> None:
    """Raise for what is refused whatever the model is."""
    call.check_size(1, body.max_tokens)
    most = call.server.config.max_prompts
    prompts = (
        len(body.prompt)
        if not isinstance(body.prompt, str) and not (body.prompt and isinstance(body.prompt[0], int))
        else 1
    )
    made = prompts * (body.best_of or body.n or 1)
    if made > most:
        raise Refusal(
            400,
            f"{prompts} prompts with {made // max(1, prompts)} answers each are {made} answers: at most {most} are "
            "made for one request (max_prompts); send several requests",
            code="too_many_prompts",
            param="prompt",
        )
    if body.suffix and body.echo:
        raise RequestError("echo and suffix are given together: the answer to a suffix is the gap alone; leave out one")
    if body.stream and body.best_of is not None and body.best_of > (body.n or 1):
        raise RequestError("best_of compares whole answers, which cannot come in pieces: leave out stream or best_of")
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens is 0: without echo there is nothing to answer")
    if body.max_tokens == 0 and body.stream:
        raise RequestError("max_tokens is 0: the echo alone does not come in pieces; leave out stream")


def _check_scores(tokens: int, each: int) -> None:
    """Raise Refusal for more log probabilities of prompts than one request may ask for."""
    if tokens * each > MOST_SCORES:
        raise Refusal(
            400,
            f"{tokens} tokens of prompts with {each} log probabilities each are too many: at most {MOST_SCORES} are "
            "told for one request; send fewer prompts, or ask for fewer of them",
            code="too_many_logprobs",
            param="logprobs",
        )


def _best(asked: Asked, streams: list[AnswerStream]) -> list[AnswerStream]:
    """Of the answers to a prompt those that are wanted."""
    if asked.params.made > asked.params.n:
        streams = sorted(streams, key=lambda stream: -stream.answer.likelihood)
    return streams[: asked.params.n]


def _choice(asked: Asked, at: int, which: int, stream: AnswerStream, told: PromptScores | None) -> TextChoice:
    answer = stream.answer
    before = _prompt_text(asked, at) if asked.body.echo else ""
    scores = None
    if asked.body.logprobs is not None:
        scores = TextScores(asked.model, answer, len(before)).next(len(answer.token_ids))
        if told is not None:
            scores = told.joined(scores)
    return TextChoice(asked.index(at, which), before + answer.text, str(answer.finish_reason), scores)  # type: ignore[arg-type]


def _prompt_text(asked: Asked, at: int) -> str:
    prompt = asked.body.prompt
    if isinstance(prompt, str):
        return prompt
    given = prompt[at] if not isinstance(prompt[0], int) else prompt
    return given if isinstance(given, str) else asked.llm.tokenizer.decode(asked.prompts[at])


def _echoed(asked: Asked, told: list[PromptScores | None], number: str, created: int) -> TextCompletion:
    """The prompts themselves, with the log probabilities of their tokens."""
    choices = []
    for at, scores in enumerate(told):
        logprobs = scores.joined(TextLogprobs([], [], [], [])) if scores is not None else None
        choices.append(TextChoice(at, _prompt_text(asked, at), "length", logprobs))
    count = sum(map(len, asked.prompts))
    return TextCompletion(
        number,
        created,
        asked.model.name,
        choices,
        Usage(count, 0, count, PromptDetails(0)),
        system_fingerprint=asked.model.fingerprint,
    )


async def _chunks(
    call: Call, asked: Asked, told: list[PromptScores | None], number: str, created: int, usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answers as server-sent events."""
    name, fingerprint = asked.model.name, asked.model.fingerprint
    about = {"id": number, "object": "text_completion", "created": created, "model": name}
    head = encoded(about | {"system_fingerprint": fingerprint})[:-1]
    tail = b',"usage":null}\n\n' if usage else b"}\n\n"
    following = dict[int, TextScores]()  # by the number of the answer, from its first piece on
    begun = set[int]()
    groups: list[list[Completion]] = [[] for _ in asked.prompts]
    async with aclosing(asked.news(call)) as news:
        async for at, which, piece, stream in news:
            index, scores = asked.index(at, which), None
            first = index not in begun
            begun.add(index)
            text = _prompt_text(asked, at) if first and asked.body.echo else ""
            if asked.body.logprobs is not None:
                if first:
                    following[index] = TextScores(asked.model, stream.answer, len(text))
                scores = following[index].next(len(piece.token_ids))
                if first and (prompt := told[at]) is not None:
                    scores = prompt.joined(scores)
            text += piece.text
            if piece.completion is not None:
                groups[at].append(piece.completion)
            if text or piece.finish_reason or (scores is not None and scores.tokens):
                choice = {"index": index, "text": text, "logprobs": scores, "finish_reason": piece.finish_reason}
                yield b"data: " + head + b',"choices":[' + encoded(choice) + b"]" + tail
    if usage:
        more = {"choices": [], "usage": usage_of(groups), "timings": figures_of(groups[0][0])}
        yield b"data: " + head + b"," + encoded(more)[1:] + b"\n\n"
    yield sse(b"[DONE]")


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/completions",
        completions,
        body=CompletionRequest,
        reply=TextCompletion,
        streams="text/event-stream",
    )
]
