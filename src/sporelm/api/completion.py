"""What comes back: pieces while an answer is made, and the completion at its end."""

from dataclasses import dataclass, field

from sporelm.engine import FinishReason, Request, TokenScores


@dataclass(frozen=True)
class Timings:
    """Seconds and tokens per second. Rates are 0 where nothing was measured.

    load_s         reading and packing the weights
    compile_s      tracing the model and making its programs
    ttft_s         from the request to its first token
    prefill_tok_s  prompt tokens computed (those found in the cache do not count) until the first token
    decode_tok_s   tokens after the first
    """

    load_s: float
    compile_s: float
    ttft_s: float = 0.0
    prefill_tok_s: float = 0.0
    decode_tok_s: float = 0.0

    def of(self, request: Request) -> "Timings":
        """These, with what was measured for one request."""
        if not request.first_token_at:
            return self
        computed = request.num_shown - request.cached_tokens
        later = request.num_generated - 1
        prefill, decode = request.first_token_at - request.started, request.last_token_at - request.first_token_at
        return Timings(
            self.load_s,
            self.compile_s,
            request.first_token_at - request.arrived,
            computed / prefill if prefill > 0 else 0.0,
            later / decode if later > 0 and decode > 0 else 0.0,
        )


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    text              without the stop string, special tokens not shown
    token_ids         every id that was generated, an end token included
    finish_reason     stop, length, cancelled or error
    prompt_token_ids  the prompt
    seed              with which the same prompt gives the same text
    cached_tokens     ids of the prompt whose keys and values were held already
    cache_miss        why not more: "first seen", "evicted", "differs at token N", "first request with this salt",
                      "no state kept between tokens M and N"; None where all but the last page of 64 was held
    drafted           tokens that were guessed (`speculate`), and
    accepted          those of them that were right
    computed_tokens   ids of the prompt that were computed
    dropped_tokens    ids of prompt and answer that were left out of a context that rolled (`SamplingParams.roll`)
    logprobs          for each id the log probability and the likeliest alternatives', if asked for
    error             what went wrong, if finish_reason is error
    alternatives      the other answers to the prompt, if several were asked for
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
    logprobs: list[TokenScores] | None = None
    error: str | None = None
    alternatives: list["Completion"] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Piece:
    """What has come since the piece before; nothing, where a step computed a part of the prompt.

    The last one carries the reason of the end and the whole completion.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
