"""/v1/completions: OpenAI's API for continuing texts or token ids."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from time import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sporelm.api.completion import Completion
from sporelm.api.llm import LLM
from sporelm.api.loaded_llm import Prompt
from sporelm.api.sampling_params import SamplingParams
from sporelm.api.text_generation import TextGeneration
from sporelm.errors import RequestError
from sporelm.serve.chat.answer_stream import AnswerStream, run_in_thread_if
from sporelm.serve.chat.fim import fim_tokens
from sporelm.serve.chat.prompt_list import PromptPiece, stream_prompts
from sporelm.serve.chat.prompt_logprobs import PromptLogprobs, prompt_logprobs
from sporelm.serve.chat.response_format import request_grammar
from sporelm.serve.chat.sampling_fields import NonNegative, SamplingFields, StreamOptions, sampling_from
from sporelm.serve.chat.token_logprobs import CompletionLogprobs, TextLogprobs
from sporelm.serve.chat.token_usage import AnswerTimings, PromptDetails, Usage, timings_of, usage_of
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.sse import encode_event, openai_error_event
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.text.fim_tokens import FimTokens, encode_fim_prompt

DEFAULT_MAX_TOKENS = 16  # as in OpenAI's API
MAX_PROMPT_LOGPROBS = 1 << 20  # about 100 bytes each, all held until the last is computed


class CompletionRequest(SamplingFields, kw_only=True):
    """`prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    max_tokens: NonNegative | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    response_format: dict[str, Any] | None = None


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: TextLogprobs | None = None


class CompletionReply(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: AnswerTimings | None = None
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None


class PreparedPrompts:
    """The prompts of a request as ids, and the sampling parameters of their answers."""

    def __init__(self, call: ApiCall, model: ServedModel, body: CompletionRequest, id_lists: list[list[int]]) -> None:
        """Raises RequestError, and ContextOverflow for any of the prompts before the first one is started."""
        self.model = model
        self.body = body
        self.id_lists = id_lists
        self.llm: LLM = model.llm
        sampling = sampling_from(body)
        if body.logprobs is not None:
            sampling["logprobs"] = body.logprobs
        grammar = request_grammar(body.response_format, body.grammar)
        if grammar is not None:
            sampling["grammar"] = grammar
        if body.suffix:
            sampling["stop_token_ids"] = [*sampling.get("stop_token_ids", ()), *sorted(fim_tokens(model).stop_ids)]
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
        self.params = SamplingParams(
            **sampling, max_tokens=max_tokens, salt=call.key.cache_salt, n=body.n or 1, best_of=body.best_of
        )
        for ids in id_lists:
            self.llm.check_prompt_length(len(ids))
        self.has_grammar = grammar is not None

    def answers(self, prompt: int) -> list[TextGeneration]:
        """Return the answers to one prompt, not started yet."""
        return self.llm.prepare_generations(self.id_lists[prompt], self.params)

    def pieces(self, call: ApiCall) -> AsyncGenerator[PromptPiece, None]:
        """Return the pieces of all answers as they arrive; the caller closes the generator."""
        return stream_prompts(
            call,
            self.model,
            self.answers,
            len(self.id_lists),
            self.params.num_sequences,
            in_thread=self.has_grammar,
        )

    def choice_index(self, prompt: int, index: int) -> int:
        """Return the index of an answer among those to all prompts."""
        return prompt * self.params.n + index

    def prompt_text(self, prompt: int) -> str:
        """Return the text of a prompt."""
        given = self.body.prompt
        if isinstance(given, str):
            return given
        one = given[prompt] if not isinstance(given[0], int) else given
        return one if isinstance(one, str) else self.llm.tokenizer.decode(self.id_lists[prompt])


def prompt_id_lists(
    prompts: str | Sequence[str | int | list[int]], encode: Callable[[Prompt], list[int]], param: str = "prompt"
) -> list[list[int]]:
    """Return the ids of all prompts of the field `param`. Raises RequestError."""
    if isinstance(prompts, str):
        return [encode(prompts)]
    if not prompts:
        raise RequestError(f"{param} is an empty list: give a text, token ids, or a list of them")
    if all(isinstance(each, int) for each in prompts):
        return [encode(prompts)]  # type: ignore[arg-type]
    if any(isinstance(each, int) for each in prompts):
        raise RequestError(f"{param} has token ids among texts or lists: give one kind")
    return [encode(each) for each in prompts]  # type: ignore[arg-type]


def fim_id_lists(body: CompletionRequest, llm: LLM, fim: FimTokens) -> list[list[int]]:
    """Return the ids that ask for the text between each prompt and the suffix. Raises RequestError."""
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    ids = prompt_id_lists(body.prompt, llm.prompt_ids)
    prefixes = texts if all(isinstance(text, str) for text in texts) else ids
    return [encode_fim_prompt(llm.tokenizer, fim, prefix, body.suffix or "") for prefix in prefixes]  # type: ignore[arg-type]


async def completions(call: ApiCall, body: CompletionRequest) -> Response | CompletionReply:
    """Prompts continued, whole or streamed. Of a list a few prompts run at a time."""
    _check_fields(call, body)
    model = await call.model(body.model)
    llm = model.llm
    if body.suffix:
        fim = fim_tokens(model)
        id_lists = await run_in_thread_if(call.is_large, lambda: fim_id_lists(body, llm, fim))
    else:
        id_lists = await run_in_thread_if(call.is_large, lambda: prompt_id_lists(body.prompt, llm.prompt_ids))
    prompts = PreparedPrompts(call, model, body, id_lists)
    await model.async_llm.isolation.try_grammar(prompts.params.grammar, prompts.params.salt)
    completion_id = f"cmpl-{call.request_id}"
    created = int(time())
    echo_logprobs: list[PromptLogprobs | None] = [None] * len(id_lists)
    if body.echo and body.logprobs is not None:
        _check_num_prompt_logprobs(sum(map(len, id_lists)), 1 + body.logprobs)
        echo_logprobs = [await prompt_logprobs(model, ids, body.logprobs, body.adapter) for ids in id_lists]
    if body.max_tokens == 0:
        return _echo_reply(prompts, echo_logprobs, completion_id, created)
    if body.stream:
        events = _events(call, prompts, echo_logprobs, completion_id, created)
        return StreamedResponse(events, "text/event-stream", openai_error_event, call)
    finished: list[list[AnswerStream | None]] = [[None] * prompts.params.num_sequences for _ in id_lists]
    async with aclosing(prompts.pieces(call)) as pieces:
        async for each in pieces:
            if each.piece.completion is not None:
                finished[each.prompt_index][each.choice_index] = each.stream
    choices = []
    groups = []
    for prompt, streams in enumerate(finished):
        best = _best_answers(prompts, [stream for stream in streams if stream is not None])
        groups.append([stream.answer.completion(llm.timings) for stream in best])
        choices += [_choice(prompts, prompt, index, stream, echo_logprobs[prompt]) for index, stream in enumerate(best)]
    return CompletionReply(
        completion_id,
        created,
        model.name,
        choices,
        usage_of(groups),
        timings_of(groups[0][0]),
        system_fingerprint=model.fingerprint,
    )


def _check_fields(call: ApiCall, body: CompletionRequest) -> None:
    """Raise RequestError or ApiError for what no model accepts."""
    call.check_chat_size(1, body.max_tokens)
    max_answers = call.server.config.max_prompts
    is_one = isinstance(body.prompt, str) or (bool(body.prompt) and isinstance(body.prompt[0], int))
    num_prompts = 1 if is_one else len(body.prompt)
    num_answers = num_prompts * (body.best_of or body.n or 1)
    if num_answers > max_answers:
        raise ApiError(
            400,
            f"{num_prompts} prompts with {num_answers // max(1, num_prompts)} answers each are {num_answers} answers: "
            f"at most {max_answers} are allowed in one request (max_prompts); send several requests",
            code="too_many_prompts",
            param="prompt",
        )
    if body.suffix and body.echo:
        raise RequestError("echo and suffix are given together: the answer to a suffix is the gap alone; leave out one")
    if body.stream and body.best_of is not None and body.best_of > (body.n or 1):
        raise RequestError("best_of compares whole answers, which cannot be streamed: leave out stream or best_of")
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens is 0: without echo there is nothing to answer")
    if body.max_tokens == 0 and body.stream:
        raise RequestError("max_tokens is 0: the echo alone cannot be streamed; leave out stream")


def _check_num_prompt_logprobs(num_tokens: int, per_token: int) -> None:
    """Raise ApiError for more log probabilities of prompts than one request may ask for."""
    if num_tokens * per_token > MAX_PROMPT_LOGPROBS:
        raise ApiError(
            400,
            f"{num_tokens} tokens of prompts with {per_token} log probabilities each are too many: at most "
            f"{MAX_PROMPT_LOGPROBS} are returned for one request; send fewer prompts, or ask for fewer alternatives",
            code="too_many_logprobs",
            param="logprobs",
        )


def _best_answers(prompts: PreparedPrompts, streams: list[AnswerStream]) -> list[AnswerStream]:
    """Return the `n` answers to a prompt with the greatest likelihood."""
    if prompts.params.num_sequences > prompts.params.n:
        streams = sorted(streams, key=lambda stream: -stream.answer.mean_logprob)
    return streams[: prompts.params.n]


def _choice(
    prompts: PreparedPrompts, prompt: int, index: int, stream: AnswerStream, echo_logprobs: PromptLogprobs | None
) -> CompletionChoice:
    answer = stream.answer
    echo = prompts.prompt_text(prompt) if prompts.body.echo else ""
    logprobs = None
    if prompts.body.logprobs is not None:
        logprobs = CompletionLogprobs(prompts.model, answer, len(echo)).next(len(answer.token_ids))
        if echo_logprobs is not None:
            logprobs = echo_logprobs.followed_by(logprobs)
    finish_reason: Any = answer.finish_reason
    return CompletionChoice(prompts.choice_index(prompt, index), echo + answer.text, finish_reason, logprobs)


def _echo_reply(
    prompts: PreparedPrompts, echo_logprobs: list[PromptLogprobs | None], completion_id: str, created: int
) -> CompletionReply:
    """Return the prompts themselves, with the log probabilities of their tokens."""
    choices = []
    for prompt, each in enumerate(echo_logprobs):
        logprobs = each.followed_by(TextLogprobs([], [], [], [])) if each is not None else None
        choices.append(CompletionChoice(prompt, prompts.prompt_text(prompt), "length", logprobs))
    num_tokens = sum(map(len, prompts.id_lists))
    return CompletionReply(
        completion_id,
        created,
        prompts.model.name,
        choices,
        Usage(num_tokens, 0, num_tokens, PromptDetails(0)),
        system_fingerprint=prompts.model.fingerprint,
    )


async def _events(
    call: ApiCall,
    prompts: PreparedPrompts,
    echo_logprobs: list[PromptLogprobs | None],
    completion_id: str,
    created: int,
) -> AsyncGenerator[bytes, None]:
    """Yield the answers as server-sent events."""
    body = prompts.body
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    fields = {"id": completion_id, "object": "text_completion", "created": created, "model": prompts.model.name}
    head = encode_json(fields | {"system_fingerprint": prompts.model.fingerprint})[:-1]
    tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
    logprobs_of = dict[int, CompletionLogprobs]()  # by the index of the choice, from its first piece on
    started = set[int]()
    groups: list[list[Completion]] = [[] for _ in prompts.id_lists]
    async with aclosing(prompts.pieces(call)) as pieces:
        async for each in pieces:
            index = prompts.choice_index(each.prompt_index, each.choice_index)
            piece = each.piece
            is_first = index not in started
            started.add(index)
            text = prompts.prompt_text(each.prompt_index) if is_first and body.echo else ""
            logprobs = None
            if body.logprobs is not None:
                if is_first:
                    logprobs_of[index] = CompletionLogprobs(prompts.model, each.stream.answer, len(text))
                logprobs = logprobs_of[index].next(len(piece.token_ids))
                if is_first and (echoed := echo_logprobs[each.prompt_index]) is not None:
                    logprobs = echoed.followed_by(logprobs)
            text += piece.text
            if piece.completion is not None:
                groups[each.prompt_index].append(piece.completion)
            if text or piece.finish_reason or (logprobs is not None and logprobs.tokens):
                choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": piece.finish_reason}
                yield b"data: " + head + b',"choices":[' + encode_json(choice) + b"]" + tail
    if include_usage:
        last = {"choices": [], "usage": usage_of(groups), "timings": timings_of(groups[0][0])}
        yield b"data: " + head + b"," + encode_json(last)[1:] + b"\n\n"
    yield encode_event(b"[DONE]")


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/completions",
        completions,
        body=CompletionRequest,
        reply=CompletionReply,
        stream_media_type="text/event-stream",
    )
]
