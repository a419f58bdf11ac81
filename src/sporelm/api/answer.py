"""One request seen from outside: its tokens as text, cut at stop strings."""

from collections.abc import Sequence
from typing import Protocol

from sporelm.api.completion import Completion, Piece, Timings
from sporelm.api.params import SamplingParams
from sporelm.engine import FinishReason, KvSequence, Request
from sporelm.engine.sampling.params import MOST_SEED
from sporelm.errors import RequestError, shown
from sporelm.text import Detokenizer, StopMatcher, Tokenizer
from sporelm.text.grammar import CompiledGrammar, compiled


class Canceller(Protocol):
    """Where requests can be cancelled."""

    def cancel(self, request: Request) -> None: ...


class Answer:
    """Follows a request. `take` turns the tokens that came since the last time into a piece of text."""

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        sequence: KvSequence | None = None,
        *,
        continues: bool = True,
        first: "Answer | None" = None,
        number: int = 0,
        adapter: int = 0,
    ) -> None:
        """Prepare to continue `prompt`, into `sequence` if one is given. Raises RequestError.

        continues   the text goes on with the prompt's, so that a space at its beginning counts
        first       of several answers to this prompt, of which this is number `number`: they share the prompt, and
                    their seeds count up, and they have its adapter
        adapter     the engine's number of an adapter, 0 for none
        """
        check_known(params, tokenizer.vocab_size)
        self.seed: int = (first.seed + number) % (MOST_SEED + 1) if first else params.chosen_seed()
        self.grammar: CompiledGrammar | None = first.grammar if first else None
        ends = frozenset() if params.ignore_eos else tokenizer.stop_ids
        self.request: Request = Request(
            prompt,
            sampling=params.sampling(self.seed, breakers(params, tokenizer)),
            max_tokens=params.max_tokens,
            stop_ids=ends | set(params.stop_token_ids),
            sequence=sequence,
            salt=params.salt,
            priority=params.priority,
            twin=first.request if first else None,
            adapter=first.request.adapter if first else adapter,
            constraint=self.grammar.matcher() if self.grammar else None,
            roll=params.roll,
        )
        self.params, self.tokenizer = params, tokenizer
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens=True, continues=continues)
        self.matcher = StopMatcher(params.stop)
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.finish_reason: FinishReason | None = None

    def prepare(self) -> None:
        """Compile the grammar, if it has one, which may take some tenths of a second. Raises RequestError."""
        if self.params.grammar is not None and self.grammar is None:
            self.grammar = compiled(self.tokenizer, self.params.grammar)
            self.request.constraint = self.grammar.matcher()

    @property
    def text(self) -> str:
        """All text so far that is certain not to belong to a stop string."""
        return "".join(self.texts)

    def take(self, engine: Canceller) -> Piece | None:
        """What is new, or None if nothing is. Cancels the request when a stop string has come.

        The engine may run in another thread: it adds the last token before it says that a request has ended.
        """
        request = self.request
        begin, ended = len(self.token_ids), request.finish_reason
        new = request.text[request.num_prompt + begin :]
        if self.finish_reason or (not new and ended is None):
            return None
        parts = []
        for token in new:
            self.token_ids.append(token)
            if token in request.stop_ids:
                continue
            text, stopped = self.matcher.push(self.detokenizer.push(token))
            parts.append(text)
            if stopped is not None:
                self.finish_reason = "stop"
                engine.cancel(request)
                break
        if self.finish_reason is None and ended is not None:
            self.finish_reason = ended
            parts.append(self.rest())
        text = "".join(parts)
        self.texts.append(text)
        return Piece(text, self.token_ids[begin:], self.finish_reason)

    def rest(self) -> str:
        """What was held back because more could have followed."""
        text, stopped = self.matcher.push(self.detokenizer.flush())
        return text if stopped is not None else text + self.matcher.flush()

    def end(self, engine: Canceller) -> None:
        """Cancel what still runs and take in what has come."""
        engine.cancel(self.request)
        self.take(engine)

    @property
    def likelihood(self) -> float:
        """The mean log probability of its tokens, where these were asked for."""
        scores = self.request.scores[: len(self.token_ids)]
        return sum(score.logprob for score in scores) / len(scores) if scores else float("-inf")

    def completion(self, timings: Timings, alternatives: Sequence[Completion] = ()) -> Completion:
        """The finished answer."""
        assert self.finish_reason is not None
        request = self.request
        return Completion(
            text=self.text,
            token_ids=self.token_ids,
            finish_reason=self.finish_reason,
            prompt_token_ids=request.prompt,
            seed=self.seed,
            timings=timings.of(request),
            cached_tokens=request.cached_tokens,
            cache_miss=request.cache_miss,
            computed_tokens=request.num_shown - request.cached_tokens,
            dropped_tokens=request.dropped,
            logprobs=request.scores[: len(self.token_ids)] if self.params.logprobs is not None else None,
            error=request.error,
            alternatives=list(alternatives),
            drafted=request.drafted,
            accepted=request.accepted,
        )


def check_known(params: SamplingParams, vocab: int) -> None:
    """Raise RequestError if parameters name a token that the model does not have."""
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        unknown = next((token for token in tokens if not 0 <= token < vocab), None)
        if unknown is not None:
            raise RequestError(f"{name} has token {shown(unknown)}: the model's tokens are 0 to {vocab - 1}")


def breakers(params: SamplingParams, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of tokens that have one of the texts across which DRY's repetitions do not reach."""
    if not params.dry_multiplier:
        return frozenset()
    return tokenizer.ids_with(tuple(params.dry_breakers))
