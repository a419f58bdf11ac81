"""One request as text: its tokens are detokenized and cut at stop strings."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from sporelm.api.completion import Completion, Piece, Timings
from sporelm.api.sampling_params import SamplingParams
from sporelm.engine import FinishReason, KvSequence, Request, TokenLogprobs
from sporelm.engine.sampling.sampler_params import MAX_SEED
from sporelm.errors import RequestError, safe_repr
from sporelm.text import Detokenizer, StopMatcher, Tokenizer
from sporelm.text.grammar.grammar_matcher import CompiledGrammar, compile_grammar


class RequestCanceller(Protocol):
    """An engine, or the thread that steps it: cancels requests."""

    def cancel(self, request: Request) -> None: ...


class TextGeneration:
    """One generation: a request and its text so far. `take` returns the text of the tokens since the last call."""

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        sequence: KvSequence | None = None,
        *,
        continues: bool = True,
        first: "TextGeneration | None" = None,
        index: int = 0,
        adapter: int = 0,
    ) -> None:
        """Prepare a request that continues `prompt`, in `sequence` if one is given. Raises RequestError.

        continues   the text continues the prompt's, so a leading space is kept
        first       the first of several generations for this prompt: they share the prompt's KV cache, the grammar and
                    the adapter, and their seeds are consecutive
        index       number of this generation among them
        adapter     the engine's id of a LoRA adapter; 0 for none
        """
        check_token_ids(params, tokenizer.vocab_size)
        self.seed: int = (first.seed + index) % (MAX_SEED + 1) if first else params.resolve_seed()
        self.grammar: CompiledGrammar | None = first.grammar if first else None
        stop_ids = frozenset() if params.ignore_eos else tokenizer.stop_ids
        self.request: Request = Request(
            prompt,
            sampling=params.sampling(self.seed, dry_breaker_ids(params, tokenizer)),
            max_tokens=params.max_tokens,
            stop_ids=stop_ids | set(params.stop_token_ids),
            sequence=sequence,
            cache_salt=params.salt,
            priority=params.priority,
            parent=first.request if first else None,
            adapter_id=first.request.adapter_id if first else adapter,
            constraint=self.grammar.matcher() if self.grammar else None,
            roll=params.roll,
        )
        self.params = params
        self.tokenizer = tokenizer
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens=True, continues=continues)
        self.matcher = StopMatcher(params.stop)
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.finish_reason: FinishReason | None = None

    def prepare(self) -> None:
        """Compile the grammar, if any, which may take some tenths of a second. Raises RequestError."""
        if self.params.grammar is not None and self.grammar is None:
            self.grammar = compile_grammar(self.tokenizer, self.params.grammar)
            self.request.constraint = self.grammar.matcher()

    @property
    def text(self) -> str:
        """The text so far, without a tail that may be the beginning of a stop string."""
        return "".join(self.texts)

    def take(self, engine: RequestCanceller) -> Piece | None:
        """Return the new piece, or None if there is none. Cancels the request after a stop string.

        The engine may run in another thread: it adds the last token before it sets the request's finish reason.
        """
        request = self.request
        begin = len(self.token_ids)
        engine_reason = request.finish_reason  # read before the tokens
        new_ids = request.all_token_ids[request.num_prompt + begin :]
        if self.finish_reason or (not new_ids and engine_reason is None):
            return None
        parts = []
        for token in new_ids:
            self.token_ids.append(token)
            if token in request.stop_ids:
                continue
            text, stopped = self.matcher.push(self.detokenizer.push(token))
            parts.append(text)
            if stopped is not None:
                self.finish_reason = "stop"
                engine.cancel(request)
                break
        if self.finish_reason is None and engine_reason is not None:
            self.finish_reason = engine_reason
            parts.append(self.flush())
        text = "".join(parts)
        self.texts.append(text)
        return Piece(text, self.token_ids[begin:], self.finish_reason)

    def flush(self) -> str:
        """Return the text that was held back because it could have been the beginning of a stop string."""
        text, stopped = self.matcher.push(self.detokenizer.flush())
        return text if stopped is not None else text + self.matcher.flush()

    def end(self, engine: RequestCanceller) -> None:
        """Cancel the request if it still runs, and take its last tokens."""
        engine.cancel(self.request)
        self.take(engine)

    @property
    def num_prompt_tokens(self) -> int:
        return self.request.num_prompt

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose keys and values were found in the cache."""
        return self.request.cached_tokens

    def scored_tokens(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, TokenLogprobs]]:
        """Yield the generated tokens from `begin` to `end` with their log probabilities, end tokens left out."""
        ids = self.token_ids[begin:end]
        for token, scores in zip(ids, self.request.logprobs[begin : begin + len(ids)], strict=True):
            if token not in self.request.stop_ids:
                yield token, scores

    @property
    def matched_stop(self) -> str | None:
        """The stop string before which the answer ended; None if it ended by itself."""
        if not self.params.stop or not self.token_ids or self.token_ids[-1] in self.request.stop_ids:
            return None
        decoded = self.tokenizer.decode(self.token_ids, skip_special_tokens=True)
        search_from = max(0, len(self.text) - 4)  # leading spaces may have been left out of the text
        matches = [(at, stop) for stop in self.params.stop if (at := decoded.find(stop, search_from)) >= 0]
        return min(matches)[1] if matches else None

    @property
    def mean_logprob(self) -> float:
        """The mean log probability of the tokens, if log probabilities were requested; else minus infinity."""
        scores = self.request.logprobs[: len(self.token_ids)]
        return sum(score.logprob for score in scores) / len(scores) if scores else float("-inf")

    def completion(self, timings: Timings, alternatives: Sequence[Completion] = ()) -> Completion:
        """Return the finished generation as a completion."""
        assert self.finish_reason is not None
        request = self.request
        return Completion(
            text=self.text,
            token_ids=self.token_ids,
            finish_reason=self.finish_reason,
            prompt_token_ids=request.prompt,
            seed=self.seed,
            timings=timings.for_request(request),
            cached_tokens=request.cached_tokens,
            cache_miss=request.cache_miss,
            computed_tokens=request.num_context_prompt - request.cached_tokens,
            dropped_tokens=request.num_dropped,
            logprobs=request.logprobs[: len(self.token_ids)] if self.params.logprobs is not None else None,
            error=request.error,
            alternatives=list(alternatives),
            drafted=request.num_draft_tokens,
            accepted=request.num_accepted_tokens,
        )


def check_token_ids(params: SamplingParams, vocab: int) -> None:
    """Raise RequestError if the parameters name a token id that the model does not have."""
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        unknown = next((token for token in tokens if not 0 <= token < vocab), None)
        if unknown is not None:
            raise RequestError(f"{name} has token {safe_repr(unknown)}: the model's tokens are 0 to {vocab - 1}")


def dry_breaker_ids(params: SamplingParams, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of tokens that contain a sequence breaker of the DRY penalty."""
    if not params.dry_multiplier:
        return frozenset()
    return tokenizer.ids_with(tuple(params.dry_breakers))
