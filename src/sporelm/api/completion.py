"""The results of a request: pieces of text while it runs, and a completion at the end."""

from dataclasses import dataclass, field

from sporelm.engine import FinishReason, Request, TokenLogprobs
from sporelm.engine.kv.prefix_cache import NEW_SALT

FIRST_WITH_SALT = NEW_SALT  # the `cache_miss` of a salt's first request


@dataclass(frozen=True)
class Timings:
    """Durations in seconds and rates in tokens per second. A rate is 0 where nothing was measured.

    load_s         time to read and pack the weights
    compile_s      time to trace the model and compile its programs
    ttft_s         time from the request to its first token
    prefill_tok_s  prompt tokens computed per second until the first token; cached tokens do not count
    decode_tok_s   tokens per second after the first token
    """

    load_s: float
    compile_s: float
    ttft_s: float = 0.0
    prefill_tok_s: float = 0.0
    decode_tok_s: float = 0.0

    def for_request(self, request: Request) -> "Timings":
        """Return these timings with the measurements of one request filled in."""
        if not request.first_token_time:
            return self
        computed = request.num_context_prompt - request.cached_tokens
        later = request.num_generated - 1
        prefill = request.first_token_time - request.start_time
        decode = request.last_token_time - request.first_token_time
        return Timings(
            self.load_s,
            self.compile_s,
            request.first_token_time - request.arrival_time,
            computed / prefill if prefill > 0 else 0.0,
            later / decode if later > 0 and decode > 0 else 0.0,
        )


@dataclass(frozen=True)
class Completion:
    """A finished request.

    text              generated text, without the stop string and without special tokens
    token_ids         all generated ids, including an end token
    finish_reason     stop, length, cancelled or error
    prompt_token_ids  ids of the prompt
    seed              seed that reproduces the text for the same prompt
    cached_tokens     prompt tokens whose keys and values came from the prefix cache
    cache_miss        why no more tokens came from the cache: "first seen", "evicted", "differs at token N", "first
                      request with this salt", "no state kept between tokens M and N"; None if at most the last page of
                      64 tokens was computed
    computed_tokens   prompt tokens that were computed
    dropped_tokens    tokens of prompt and answer that were dropped when the context was full (`SamplingParams.roll`)
    logprobs          for each generated id its log probability and those of the likeliest alternatives, if requested
    error             reason of the failure, if finish_reason is error
    alternatives      the other completions of this prompt, if several were requested
    drafted           tokens proposed by speculative decoding (`speculate`)
    accepted          proposed tokens that the model accepted
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    seed: int
    timings: Timings
    cached_tokens: int
    cache_miss: str | None
    computed_tokens: int = 0
    dropped_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    alternatives: list["Completion"] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Piece:
    """The text and tokens generated since the previous piece; empty if the step computed a part of the prompt.

    The last piece has the finish reason and the whole completion.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
