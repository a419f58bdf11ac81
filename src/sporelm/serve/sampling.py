"""The fields of a request that say how tokens are chosen, in the words of OpenAI and of those who extended it."""

from typing import Annotated, Any

from msgspec import Meta

from sporelm.errors import RequestError, shown
from sporelm.serve.endpoint import Body
from sporelm.serve.forms import stops_of

Whole = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
TopK = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]  # -1 and 0: all
Seed = Annotated[int, Meta(ge=-(1 << 63))]  # at most 2^64 - 1, which `SamplingParams` checks
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]


class SamplingBody(Body, kw_only=True):
    """What all of OpenAI's requests can say of it. What is not said is as in `SamplingParams`."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Whole] | None = None
    ignore_eos: bool | None = None
    min_tokens: Whole | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Penalty] | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None
    dry_range: Whole | None = None
    dry_breakers: list[str] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
    roll: bool | None = None
    adapter: str | None = None
    grammar: str | None = None  # GBNF, as llama-server takes it
    # What clients may send and what changes nothing here; docs/server.md says so.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    cache_prompt: Any = None


PLAIN = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "ignore_eos", "min_tokens", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_range", "dry_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "roll", "adapter",
    "stop_token_ids", "seed",
)  # fmt: skip


def fields_of(body: SamplingBody) -> dict[str, Any]:
    """The fields of `SamplingParams` that a request gives. Raises RequestError."""
    found = {name: value for name in PLAIN if (value := getattr(body, name)) is not None}
    if body.stop is not None:
        found["stop"] = stops_of(body.stop)
    if body.logit_bias:
        found["logit_bias"] = {_token(text): bias for text, bias in body.logit_bias.items()}
    return found


def _token(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise RequestError(f"a token of logit_bias is {shown(text)}: it must be a token's number")
    return int(text)
