"""What Ollama's chat and generate have in common: their requests, and their answers whole and in lines."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sporelm.api.completion import Completion
from sporelm.errors import RequestError
from sporelm.serve.chat import ChatAsk, goes_on
from sporelm.serve.endpoint import Body, encoded
from sporelm.serve.failures import Refusal, ollama_shape
from sporelm.serve.ollama_options import grammar_of, tokens_of, translated
from sporelm.serve.reading import Reading
from sporelm.serve.scores import TokenLogprob
from sporelm.serve.served_model import ServedModel

NDJSON = "application/x-ndjson"


class Asked(Body, kw_only=True):
    """What both requests have."""

    model: str = ""
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    # Whether prompts are cut that are too long, and contexts that are full: they never are here.
    truncate: Any = None
    shift: Any = None


class OllamaReply(msgspec.Struct, omit_defaults=True):
    """A piece of an answer, or all of it; times are nanoseconds."""

    model: str
    created_at: str
    done: bool
    message: dict[str, Any] | None = None
    response: str | None = None
    thinking: str | None = None
    logprobs: list[TokenLogprob] | None = None
    done_reason: str | None = None
    context: list[int] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


def now() -> str:
    """The time, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Clock:
    """When a request began, and when its model was there: perf_counter_ns."""

    def __init__(self) -> None:
        self.began = self.loaded = perf_counter_ns()

    def lap(self) -> None:
        """The model is there."""
        self.loaded = perf_counter_ns()


def last(model: ServedModel, completion: Completion, clock: Clock, **said: Any) -> OllamaReply:
    """The end of an answer, with its figures."""
    timings = completion.timings
    made = len(completion.token_ids)
    decoding = (made - 1) / timings.decode_tok_s if timings.decode_tok_s else 0.0
    return OllamaReply(
        model.name,
        now(),
        True,
        done_reason="length"
        if completion.finish_reason == "length"
        else "stop",  # it has no word for an end with calls
        total_duration=perf_counter_ns() - clock.began,
        load_duration=clock.loaded - clock.began,
        prompt_eval_count=len(completion.prompt_token_ids),
        prompt_eval_duration=int(timings.ttft_s * 1e9),
        eval_count=made,
        eval_duration=int(decoding * 1e9),
        **said,
    )


def error_line(refusal: Refusal) -> bytes:
    """An error in the middle of lines."""
    return encoded(ollama_shape(refusal)) + b"\n"


def sampling_of(body: Asked, max_context: int) -> dict[str, Any]:
    """Fields of `SamplingParams`, without max_tokens and salt. Raises RequestError."""
    found = translated(body.options or {}, max_context)
    grammar = grammar_of(body.format)
    if grammar is not None:
        found["grammar"] = grammar
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs is given without logprobs: set logprobs to true")
    if body.logprobs:
        found["logprobs"] = body.top_logprobs or 0
    return found


def ask_of(
    model: ServedModel,
    body: Asked,
    messages: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
    before: Sequence[int] = (),
) -> ChatAsk:
    """A chat as a request wants it; `before` are ids that it goes on from. Raises RequestError."""
    llm = model.llm.llm
    variables: dict[str, Any] = {}
    if body.think is not None and body.think != "":
        if body.think and not Reading(llm, None, None).thinks:
            raise RequestError(f"{model.name} does not support thinking: leave out think")
        variables["enable_thinking"] = bool(body.think)
        if isinstance(body.think, str):
            variables["reasoning_effort"] = body.think
    return ChatAsk(
        messages=messages,
        goes_on=goes_on(messages),
        sampling=sampling_of(body, llm.max_context),
        max_tokens=tokens_of(body.options or {}),
        tools=tools or None,
        variables=variables,
        before=before,
    )
