"""The sampling fields of requests, under the names of OpenAI and of servers that extend its API."""

from typing import Annotated, Any

from msgspec import Meta

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.chat.response_format import stop_strings
from sporelm.serve.http.json_body import RequestBody

MAX_INT = (1 << 31) - 1
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_INT)]
NonNegative = Annotated[int, Meta(ge=0, le=MAX_INT)]
TopK = Annotated[int, Meta(ge=-1, le=MAX_INT)]  # -1 and 0: all
Seed = Annotated[int, Meta(ge=-(1 << 63))]  # at most 2^64 - 1, which `SamplingParams` checks
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]


class SamplingFields(RequestBody, kw_only=True):
    """The fields that all of OpenAI's requests share. The defaults are those of `SamplingParams`."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[NonNegative] | None = None
    ignore_eos: bool | None = None
    min_tokens: NonNegative | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Penalty] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: MaxTokens | None = None
    dry_range: NonNegative | None = None
    dry_breakers: list[str] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
    roll: bool | None = None
    adapter: str | None = None
    grammar: str | None = None  # GBNF, as in llama-server
    # Accepted without effect, since clients send them unasked; docs/server.md lists them.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    cache_prompt: Any = None


class StreamOptions(RequestBody, kw_only=True):
    include_usage: bool = False
    include_obfuscation: bool = False


SAME_NAMES = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "ignore_eos", "min_tokens", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_range", "dry_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "roll", "adapter",
    "stop_token_ids", "seed",
)  # fmt: skip


def sampling_from(body: SamplingFields) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that a request sets. Raises RequestError."""
    sampling = given_fields(body, SAME_NAMES)
    if body.stop is not None:
        sampling["stop"] = stop_strings(body.stop)
    if body.logit_bias:
        sampling["logit_bias"] = {_token_id(text): bias for text, bias in body.logit_bias.items()}
    return sampling


def given_fields(body: RequestBody, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of these names that are not null."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}


def num_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """Return how many alternatives each token's log probabilities have; None without log probabilities.

    Raises RequestError for `top_logprobs` without `logprobs`.
    """
    if top_logprobs is not None and not logprobs:
        raise RequestError("top_logprobs is given without logprobs: set logprobs to true")
    return (top_logprobs or 0) if logprobs else None


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise RequestError(f"logit_bias has token {safe_repr(text)}: it must be a token id")
    return int(text)
