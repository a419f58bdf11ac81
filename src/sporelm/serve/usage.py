"""What an answer cost, in OpenAI's words and in ours."""

from collections.abc import Sequence

import msgspec

from sporelm.api.completion import Completion
from sporelm.engine.kv.prefix import NEW_SALT
from sporelm.serve.failures import Refusal

FIRST_OF_KEY = "first request with this key"


class PromptDetails(msgspec.Struct):
    """Of the prompt's tokens those that needed no computing, and why not more; null where no full page of 64 was
    missing: a prompt of 64 tokens or fewer has none, since its last token is always computed."""

    cached_tokens: int
    cache_miss: str | None = None


class AnswerDetails(msgspec.Struct):
    """Of the answers' tokens those of reasoning, its marks included."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens; a prompt with several answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: AnswerDetails = msgspec.field(default_factory=AnswerDetails)


class Figures(msgspec.Struct):
    """How fast an answer was: seconds to the first token, tokens per second of the prompt and of the answer."""

    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float


def usage_of(groups: Sequence[Sequence[Completion]], thought: int = 0) -> Usage:
    """The usage of prompts, each with its answers; `thought`: tokens of reasoning."""
    prompt = sum(len(group[0].prompt_token_ids) for group in groups)
    made = sum(len(each.token_ids) for group in groups for each in group)
    miss = next((group[0].cache_miss for group in groups if group[0].cache_miss is not None), None)
    cached = sum(group[0].cached_tokens for group in groups)
    return Usage(prompt, made, prompt + made, PromptDetails(cached, for_clients(miss)), AnswerDetails(thought))


def for_clients(miss: str | None) -> str | None:
    """Why no more was found, in the words of those who have keys and no salts."""
    return FIRST_OF_KEY if miss == NEW_SALT else miss


def figures_of(completion: Completion) -> Figures:
    """The figures of one answer, rounded to what they are worth."""
    timings = completion.timings
    return Figures(round(timings.ttft_s, 5), round(timings.prefill_tok_s, 1), round(timings.decode_tok_s, 1))


def check_finished(completion: Completion, *, constrained: bool) -> None:
    """Raise Refusal for an answer that did not come to an end of its own; `constrained`: it had a grammar."""
    if completion.finish_reason == "error":
        why = completion.error or "the answer failed without a reason"
        if constrained:  # this model cannot write what was asked for: a matter of the request
            raise Refusal(400, why, code="grammar_failed", param="response_format")
        raise Refusal(500, why, "server_error", "answer_failed")
    if completion.finish_reason == "cancelled":
        raise Refusal(503, "the answer was cancelled: the server is ending", "server_error", "cancelled")
