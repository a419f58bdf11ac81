"""Guesses of a second, smaller model with the same tokens.

It has a worker and pages of its own. For each request it holds the keys and values of what is known, catches up when
more of it is, and says the next tokens one after the other, for all requests in the same steps: the likeliest ones, or
where the request samples, those that its own random numbers choose of the draft model's scores. Where both models'
scores are alike the same numbers choose the same tokens, so that sampled answers are guessed as well as greedy ones.
Which guesses are right is for the large model to say.
"""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple, Protocol

import numpy as np

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv import KvCache, KvSequence
from sporelm.engine.kv.prefix_cache import PageHashes
from sporelm.engine.request import Request
from sporelm.engine.runner import ModelOutput
from sporelm.engine.sampling.sampler import SamplerState, sample_rows
from sporelm.engine.speculative.drafter import DraftTokens
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.ops.paged_attention import PAGE

CLOSE = 16  # tokens, at most, that a proposal itself catches up
CHUNK = 64  # tokens that are read in one go while other requests wait
LEAST_CHANCE = 0.4  # of all guesses of a request being right; below it no more are added


class DraftRunner(Protocol):
    """What computes the draft model's steps."""

    def run(self, step: Step) -> ModelOutput: ...


class _DraftSequence(NamedTuple):
    """What a request has in a step of the draft model. `choice` chooses as the request will; None: the likeliest.
    `guessed`: the tokens may be wrong."""

    request: int
    sequence: KvSequence
    tokens: Sequence[int]
    state: SamplerState | None = None
    guessed: bool = False


class ModelDrafter:
    """Guesses what a draft model says.

    limits  the draft model's own
    vocab   ids that the large model knows; both models give the same texts to those that both have
    """

    def __init__(self, runner: DraftRunner, limits: EngineConfig, vocab: int) -> None:
        self.runner = runner
        self.limits = limits
        self.vocab = min(vocab, limits.vocab)
        self.kv_cache = KvCache(limits.num_pages, limits.num_states, limits.state_interval)
        self.sequences: dict[int, KvSequence] = {}  # by request

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Compute what the draft model lacks of long texts, a chunk of them in this call."""
        budget = self.limits.token_budget if alone else min(CHUNK, self.limits.token_budget)
        shares: list[_DraftSequence] = []
        for request in requests[: self.limits.max_batch]:
            if budget <= 0 or not self._can_hold(request, 0):
                continue
            sequence = self._followed(request)
            missing = len(request.known) - 1 - sequence.length
            if missing > CLOSE:
                tokens = request.known[sequence.length : sequence.length + min(missing, budget)]
                if max(tokens) < self.vocab:
                    shares.append(_DraftSequence(request.id, sequence, tokens))
                    budget -= len(tokens)
        self._run(shares, rows=0)

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        """Guesses by request: at most so many tokens for each, and `rows` for all together.

        Texts that are not read yet have none, nor those beyond the draft model's context, nor any without free pages.
        """
        shares, budget = list[_DraftSequence](), self.limits.token_budget
        most: dict[int, int] = {}
        trust: dict[int, float] = {}  # the share of guesses that were right, of requests that sample
        for request, wished in wanted[: self.limits.max_batch]:
            if not self._can_hold(request, 1):
                continue
            sequence = self._followed(request)
            tokens = request.known[sequence.length :]
            if len(tokens) <= min(CLOSE + 1, budget) and max(tokens) < self.vocab:
                budget -= len(tokens)
                shares.append(_DraftSequence(request.id, sequence, tokens, draft_sampler_state(request)))
                trust[request.id] = (request.accepted + 4) / (request.drafted + 4)
                most[request.id] = min(wished, self.limits.max_context - len(request.known))
        lengths = [share.sequence.length + len(share.tokens) for share in shares]
        try:
            return self._guessed(shares, rows, most, trust)
        finally:
            for share, length in zip(shares, lengths, strict=True):
                self.kv_cache.rollback_draft(share.sequence, length)

    def _guessed(
        self, shares: Sequence[_DraftSequence], rows: int, most: dict[int, int], trust: dict[int, float]
    ) -> dict[int, DraftTokens]:
        """Token after token for all of them together, as long as they are likely. Changes the sequences."""
        found: dict[int, DraftTokens] = {}
        chances = dict.fromkeys(most, 1.0)
        while shares and rows > 0:
            going_on = []
            for share, token, chance in self._run(shares[:rows], rows=1):
                if token >= self.vocab:
                    continue
                guess = found.setdefault(share.request, DraftTokens([], []))
                guess.tokens.append(token)
                guess.chances.append(chance if share.state is None else trust[share.request])
                rows -= 1
                chances[share.request] *= guess.chances[-1]
                if len(guess.tokens) < most[share.request] and chances[share.request] >= LEAST_CHANCE:
                    going_on.append(share._replace(tokens=[token], guessed=True))
            shares = going_on
        return found

    def end(self, request: Request) -> None:
        """Forget a request; what was computed of it can be found by others until the pages are needed."""
        sequence = self.sequences.pop(request.id, None)
        if sequence is not None:
            self.kv_cache.drop(sequence)

    def check_integrity(self) -> None:
        """Raise BackendError unless pages and sequences agree. Changes nothing."""
        self.kv_cache.check_integrity()

    def _can_hold(self, request: Request, more: int) -> bool:
        """Whether the draft model has the positions for what is known, and so many more."""
        return len(request.known) + more <= self.limits.max_context

    def _followed(self, request: Request) -> KvSequence:
        """The request's sequence, cut back to what is known without the last token, whose scores are wanted."""
        known = request.known
        sequence = self.sequences.get(request.id)
        if sequence is None or sequence.id not in self.kv_cache.sequences:
            sequence = self.sequences[request.id] = self.kv_cache.new_sequence()
            sequence.page_hashes.root = request.page_hashes.root
        self.kv_cache.truncate(sequence, min(sequence.match_length(known), len(known) - 1))
        if len(known) - 1 - sequence.length >= PAGE:
            page_hashes = PageHashes("")
            page_hashes.root = sequence.page_hashes.root
            page_hashes.extend(known)
            pages = self.kv_cache.find_prefix(page_hashes.hashes[: (len(known) - 1) // PAGE])
            if len(pages) * PAGE > sequence.length:
                self.kv_cache.attach_prefix(sequence, pages, known, page_hashes.hashes)
        return sequence

    def _run(self, shares: Sequence[_DraftSequence], rows: int) -> list[tuple[_DraftSequence, int, float]]:
        """Compute a step of those shares for which there are pages. With one of `rows` for each, a token and its
        probability; nothing for scores that are not numbers. Changes the sequences."""
        ran: list[_DraftSequence] = []
        parts: list[ScheduledSequence] = []
        copies: list[tuple[int, int]] = []
        for share in shares:
            self.kv_cache.acquire(share.sequence)  # the others give way to those that guess now
        for share in shares:
            sequence = share.sequence
            if share.guessed and not self.kv_cache.begin_draft(sequence):
                continue
            if not self.kv_cache.reserve(sequence, sequence.length + len(share.tokens), copies):
                continue
            place = (sequence.length, sequence.page_table, rows, 0, sequence.state_slot)
            parts.append(ScheduledSequence(share.request, share.tokens, *place))
            ran.append(share)
        for share in shares:
            self.kv_cache.release(share.sequence)
        if not parts:
            return []
        try:
            scores = self.runner.run(Step(parts, copies, self.kv_cache.pop_state_copies()))
        except BaseException:
            for share in ran:
                self.kv_cache.rollback_step(share.sequence)
            raise
        for share in ran:
            self.kv_cache.extend(share.sequence, share.tokens)
        if not rows:
            return []
        found = []
        for share, token, logits in zip(ran, sample_draft_tokens(scores, ran), scores.logits, strict=True):
            if token >= 0:
                found.append((share, token, float(1 / np.exp(logits - logits[token]).sum())))
            else:
                self.kv_cache.invalidate(share.sequence)
        return found


def sample_draft_tokens(scores: ModelOutput, shares: Sequence[_DraftSequence]) -> list[int]:
    """A token for each row: the likeliest, or what the share's choice makes of it; below 0 where there is none."""
    tokens: list[int] = scores.best.tolist()
    sampled = [share.state is not None and token >= 0 for share, token in zip(shares, tokens, strict=True)]
    if any(sampled):
        rows = list(compress(range(len(tokens)), sampled))
        states = [state for row in rows if (state := shares[row].state) is not None]
        for row, token in zip(rows, sample_rows(scores.logits[rows], states), strict=True):
            tokens[row] = token
    return tokens


def draft_sampler_state(request: Request) -> SamplerState | None:
    """What will choose the request's next tokens, but for penalties; None where the likeliest is the best guess.

    A request draws one number a token, or two with XTC. Where a grammar forces tokens none is drawn for them, and
    mirostat depends on all that was said before: these are guessed at as if they were greedy.
    """
    sampling = request.sampling
    if not sampling.temperature or sampling.mirostat or request.constraint is not None:
        return None
    state = SamplerState(sampling, ())
    state.processors = []
    state.bits.advance(request.num_generated * (2 if sampling.xtc_probability else 1))
    return state
