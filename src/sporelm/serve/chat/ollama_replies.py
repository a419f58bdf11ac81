"""Requests and replies that Ollama's chat and generate share."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sporelm.api.completion import Completion
from sporelm.errors import RequestError
from sporelm.serve.chat.chat_format import ChatFormat, ends_with_answer
from sporelm.serve.chat.chat_stream import ChatRequest
from sporelm.serve.chat.ollama_options import grammar_from_ollama, max_tokens_from_options, sampling_from_options
from sporelm.serve.chat.reasoning_effort import checked_effort
from sporelm.serve.chat.sampling_fields import num_logprobs
from sporelm.serve.chat.token_logprobs import TokenLogprob
from sporelm.serve.http.api_errors import ApiError, ollama_error_body
from sporelm.serve.http.json_body import RequestBody, encode_json
from sporelm.serve.model_pool.served_model import ServedModel

NDJSON = "application/x-ndjson"


class OllamaFields(RequestBody, kw_only=True):
    """The fields of both requests."""

    model: str = ""
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    # Whether to truncate long prompts and full contexts: accepted without effect, since they are never truncated.
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


def timestamp() -> str:
    """Return the current time in Ollama's format."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Stopwatch:
    """The times at which a request arrived and its model was loaded: perf_counter_ns."""

    def __init__(self) -> None:
        self.start = self.loaded = perf_counter_ns()

    def mark_loaded(self) -> None:
        self.loaded = perf_counter_ns()


def last_reply(model: ServedModel, completion: Completion, stopwatch: Stopwatch, **fields: Any) -> OllamaReply:
    """Return the end of an answer, with its statistics."""
    timings = completion.timings
    num_tokens = len(completion.token_ids)
    eval_seconds = (num_tokens - 1) / timings.decode_tok_s if timings.decode_tok_s else 0.0
    return OllamaReply(
        model.name,
        timestamp(),
        True,
        done_reason="length" if completion.finish_reason == "length" else "stop",  # Ollama has none for tool calls
        total_duration=perf_counter_ns() - stopwatch.start,
        load_duration=stopwatch.loaded - stopwatch.start,
        prompt_eval_count=len(completion.prompt_token_ids),
        prompt_eval_duration=int(timings.ttft_s * 1e9),
        eval_count=num_tokens,
        eval_duration=int(eval_seconds * 1e9),
        **fields,
    )


def ollama_error_line(error: ApiError) -> bytes:
    """Return an error in a stream of lines."""
    return encode_json(ollama_error_body(error)) + b"\n"


def ollama_sampling(body: OllamaFields, max_context: int) -> dict[str, Any]:
    """Return the fields of `SamplingParams` except max_tokens and salt. Raises RequestError."""
    sampling = sampling_from_options(body.options or {}, max_context)
    grammar = grammar_from_ollama(body.format)
    if grammar is not None:
        sampling["grammar"] = grammar
    logprobs = num_logprobs(body.logprobs, body.top_logprobs)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    return sampling


def ollama_chat_request(
    model: ServedModel,
    body: OllamaFields,
    messages: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
    context_ids: Sequence[int] = (),
) -> ChatRequest:
    """Return a request's chat, which continues `context_ids`. Raises RequestError."""
    llm = model.llm
    variables: dict[str, Any] = {}
    if body.think is not None and body.think != "":
        if body.think and not ChatFormat(llm, None, None).supports_reasoning:
            raise RequestError(f"{model.name} does not support thinking: leave out think")
        variables["enable_thinking"] = bool(body.think)
        if isinstance(body.think, str):
            variables["reasoning_effort"] = checked_effort("think", body.think)
    return ChatRequest(
        messages=messages,
        continue_last=ends_with_answer(messages),
        sampling=ollama_sampling(body, llm.max_context),
        max_tokens=max_tokens_from_options(body.options or {}),
        tools=tools or None,
        template_variables=variables,
        context_ids=context_ids,
    )
