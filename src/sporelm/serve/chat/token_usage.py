"""The usage of a request: token counts in OpenAI's terms, and timings."""

from collections.abc import Sequence

import msgspec

from sporelm.api.completion import FIRST_WITH_SALT, Completion
from sporelm.serve.http.api_errors import ApiError

FIRST_WITH_KEY = "first request with this key"


class PromptDetails(msgspec.Struct):
    """Prompt tokens found in the cache, and why not more; null unless a full page of 64 tokens was missing. The last
    token is always computed, so a prompt of 64 tokens or fewer has no full page."""

    cached_tokens: int
    cache_miss: str | None = None


class CompletionDetails(msgspec.Struct):
    """Generated tokens that are reasoning, delimiters included."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Numbers of tokens; a prompt with several answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = msgspec.field(default_factory=CompletionDetails)


class AnswerTimings(msgspec.Struct):
    """Seconds to the first token, and tokens per second of the prompt and of the answer."""

    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float


def usage_of(groups: Sequence[Sequence[Completion]], reasoning_tokens: int = 0) -> Usage:
    """Return the usage of prompts, each with its answers."""
    prompt_tokens = sum(len(group[0].prompt_token_ids) for group in groups)
    completion_tokens = sum(len(each.token_ids) for group in groups for each in group)
    cache_miss = next((group[0].cache_miss for group in groups if group[0].cache_miss is not None), None)
    cached_tokens = sum(group[0].cached_tokens for group in groups)
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptDetails(cached_tokens, cache_miss_for_client(cache_miss)),
        CompletionDetails(reasoning_tokens),
    )


def cache_miss_for_client(cache_miss: str | None) -> str | None:
    """Return the reason of a cache miss for clients, who have API keys instead of salts."""
    return FIRST_WITH_KEY if cache_miss == FIRST_WITH_SALT else cache_miss


def timings_of(completion: Completion) -> AnswerTimings:
    """Return the timings of one answer, rounded to meaningful digits."""
    timings = completion.timings
    return AnswerTimings(round(timings.ttft_s, 5), round(timings.prefill_tok_s, 1), round(timings.decode_tok_s, 1))


def check_finished(completion: Completion, *, has_grammar: bool) -> None:
    """Raise ApiError for an answer that failed or was cancelled."""
    if completion.finish_reason == "error":
        reason = completion.error or "the answer failed without a reason"
        if has_grammar:  # the model cannot write the requested form, which the request can change
            raise ApiError(400, reason, code="grammar_failed", param="response_format")
        raise ApiError(500, reason, "server_error", "answer_failed")
    if completion.finish_reason == "cancelled":
        raise ApiError(503, "the answer was cancelled: the server is shutting down", "server_error", "cancelled")
