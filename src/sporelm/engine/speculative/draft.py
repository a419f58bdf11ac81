"""Drafts of a second, smaller model with the same tokens.

It has a worker and pages of its own. For each request it holds the KV of the context, catches up when that grows, and
samples the next tokens one after the other, for all requests in the same steps: the likeliest ones, or where the
request samples, the tokens that its own random numbers draw from the draft model's logits. Where both models'
logits are alike the same numbers choose the same tokens, so that drafts are accepted for sampled
answers as for greedy ones. The target model decides which draft tokens are accepted.
"""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple, Protocol

import numpy as np

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv import KvCache, KvSequence
from sporelm.engine.kv.prefix_cache import PageHashes
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.request import Request
from sporelm.engine.sampling.sampler import SamplerState, sample_rows
from sporelm.engine.speculative.drafter import DraftTokens
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.ops.paged_attention import PAGE

CLOSE = 16  # tokens, at most, that a proposal itself catches up
CHUNK = 64  # tokens that are read in one step while other requests wait
MIN_PROBABILITY = 0.4  # that all draft tokens of a request are accepted; below it no more are added


class DraftRunner(Protocol):
    """Computes the draft model's steps."""

    def run(self, step: Step) -> ModelOutput: ...


class _DraftSequence(NamedTuple):
    """The share of a request in a step of the draft model."""

    request_id: int
    sequence: KvSequence
    tokens: Sequence[int]
    state: SamplerState | None = None  # samples as the request will; None: the likeliest token
    is_draft: bool = False  # whether the tokens may be rejected


class ModelDrafter:
    """Proposes the draft model's tokens.

    limits  the draft model's own
    vocab   of the target model; ids that both models have stand for the same texts
    """

    def __init__(self, runner: DraftRunner, limits: EngineConfig, vocab: int) -> None:
        self.runner = runner
        self.limits = limits
        self.vocab = min(vocab, limits.vocab)
        self.kv_cache = KvCache(limits.num_pages, limits.num_states, limits.state_interval)
        self.sequences: dict[int, KvSequence] = {}  # by request id

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Compute a chunk of the long texts that the draft model lacks."""
        budget = self.limits.token_budget if alone else min(CHUNK, self.limits.token_budget)
        drafts: list[_DraftSequence] = []
        for request in requests[: self.limits.max_batch]:
            if budget <= 0 or request.images or not self._can_hold(request, 0):
                continue
            sequence = self._prepare_sequence(request)
            num_missing = len(request.context_ids) - 1 - sequence.length
            if num_missing > CLOSE:
                tokens = request.context_ids[sequence.length : sequence.length + min(num_missing, budget)]
                if max(tokens) < self.vocab:
                    drafts.append(_DraftSequence(request.id, sequence, tokens))
                    budget -= len(tokens)
        self._run(drafts, num_outputs=0)

    def propose_all(self, limits: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        """Return draft tokens by request id, up to each request's limit, `rows` in all.

        Texts that are not read yet have none, nor those beyond the draft model's context, nor any without free pages.
        """
        drafts, budget = list[_DraftSequence](), self.limits.token_budget
        max_tokens: dict[int, int] = {}
        acceptance: dict[int, float] = {}  # the share of draft tokens that were accepted, of requests that sample
        for request, limit in limits[: self.limits.max_batch]:
            if request.images or not self._can_hold(request, 1):  # the draft model has no vision tower
                continue
            sequence = self._prepare_sequence(request)
            tokens = request.context_ids[sequence.length :]
            if len(tokens) <= min(CLOSE + 1, budget) and max(tokens) < self.vocab:
                budget -= len(tokens)
                drafts.append(_DraftSequence(request.id, sequence, tokens, draft_sampler_state(request)))
                acceptance[request.id] = (request.num_accepted_tokens + 4) / (request.num_draft_tokens + 4)
                max_tokens[request.id] = min(limit, self.limits.max_context - len(request.context_ids))
        lengths = [draft.sequence.length + len(draft.tokens) for draft in drafts]
        try:
            return self._propose(drafts, rows, max_tokens, acceptance)
        finally:
            for draft, length in zip(drafts, lengths, strict=True):
                self.kv_cache.rollback_draft(draft.sequence, length)

    def _propose(
        self,
        drafts: Sequence[_DraftSequence],
        rows: int,
        max_tokens: dict[int, int],
        acceptance: dict[int, float],
    ) -> dict[int, DraftTokens]:
        """Sample token after token for all requests together, as long as they are likely. Changes the sequences."""
        proposed: dict[int, DraftTokens] = {}
        probabilities = dict.fromkeys(max_tokens, 1.0)
        while drafts and rows > 0:
            next_drafts = []
            for draft, token, probability in self._run(drafts[:rows], num_outputs=1):
                if token >= self.vocab:
                    continue
                request_id = draft.request_id
                draft_tokens = proposed.setdefault(request_id, DraftTokens([], []))
                draft_tokens.tokens.append(token)
                draft_tokens.probabilities.append(probability if draft.state is None else acceptance[request_id])
                rows -= 1
                probabilities[request_id] *= draft_tokens.probabilities[-1]
                is_full = len(draft_tokens.tokens) >= max_tokens[request_id]
                if not is_full and probabilities[request_id] >= MIN_PROBABILITY:
                    next_drafts.append(draft._replace(tokens=[token], is_draft=True))
            drafts = next_drafts
        return proposed

    def end(self, request: Request) -> None:
        """Forget a request; its pages stay in the prefix cache until they are needed."""
        sequence = self.sequences.pop(request.id, None)
        if sequence is not None:
            self.kv_cache.drop(sequence)

    def check_integrity(self) -> None:
        """Raise BackendError unless pages and sequences agree. Changes nothing."""
        self.kv_cache.check_integrity()

    def _can_hold(self, request: Request, num_more: int) -> bool:
        """Return whether the draft model has the positions for the context and `num_more`."""
        return len(request.context_ids) + num_more <= self.limits.max_context

    def _prepare_sequence(self, request: Request) -> KvSequence:
        """Return the request's sequence, cut back to the context without the last token, whose logits are wanted."""
        context_ids = request.context_ids
        sequence = self.sequences.get(request.id)
        if sequence is None or sequence.id not in self.kv_cache.sequences:
            sequence = self.sequences[request.id] = self.kv_cache.new_sequence()
            sequence.page_hashes.root = request.page_hashes.root
        self.kv_cache.truncate(sequence, min(sequence.match_length(context_ids), len(context_ids) - 1))
        if len(context_ids) - 1 - sequence.length >= PAGE:
            page_hashes = PageHashes("")
            page_hashes.root = sequence.page_hashes.root
            page_hashes.extend(context_ids)
            pages = self.kv_cache.find_prefix(page_hashes.hashes[: (len(context_ids) - 1) // PAGE])
            if len(pages) * PAGE > sequence.length:
                self.kv_cache.attach_prefix(sequence, pages, context_ids, page_hashes.hashes)
        return sequence

    def _run(self, drafts: Sequence[_DraftSequence], num_outputs: int) -> list[tuple[_DraftSequence, int, float]]:
        """Compute a step of those sequences for which there are pages. Changes the sequences.

        With one of `num_outputs` for each, return a token and its probability, except where logits are NaN.
        """
        ran: list[_DraftSequence] = []
        scheduled: list[ScheduledSequence] = []
        copies: list[tuple[int, int]] = []
        for draft in drafts:
            self.kv_cache.acquire(draft.sequence)  # so that only other sequences are evicted
        for draft in drafts:
            sequence = draft.sequence
            if draft.is_draft and not self.kv_cache.begin_draft(sequence):
                continue
            if not self.kv_cache.reserve(sequence, sequence.length + len(draft.tokens), copies):
                continue
            place = (sequence.length, sequence.page_table, num_outputs, 0, sequence.state_slot)
            scheduled.append(ScheduledSequence(draft.request_id, draft.tokens, *place))
            ran.append(draft)
        for draft in drafts:
            self.kv_cache.release(draft.sequence)
        if not scheduled:
            return []
        try:
            output = self.runner.run(Step(scheduled, copies, self.kv_cache.pop_state_copies()))
        except BaseException:
            for draft in ran:
                self.kv_cache.rollback_step(draft.sequence)
            raise
        for draft in ran:
            self.kv_cache.extend(draft.sequence, draft.tokens)
        if not num_outputs:
            return []
        results = []
        for draft, token, logits in zip(ran, sample_draft_tokens(output, ran), output.logits, strict=True):
            if token >= 0:
                results.append((draft, token, float(1 / np.exp(logits - logits[token]).sum())))
            else:
                self.kv_cache.invalidate(draft.sequence)
        return results


def sample_draft_tokens(output: ModelOutput, drafts: Sequence[_DraftSequence]) -> list[int]:
    """Return a token for each row: the likeliest, or a sampled one; below 0 where there is none."""
    tokens: list[int] = output.argmax.tolist()
    is_sampled = [draft.state is not None and token >= 0 for draft, token in zip(drafts, tokens, strict=True)]
    if any(is_sampled):
        rows = list(compress(range(len(tokens)), is_sampled))
        states = [state for row in rows if (state := drafts[row].state) is not None]
        for row, token in zip(rows, sample_rows(output.logits[rows], states), strict=True):
            tokens[row] = token
    return tokens


def draft_sampler_state(request: Request) -> SamplerState | None:
    """Return a state that will sample as the request does, but for penalties; None to draft the likeliest tokens.

    A request draws one number a token, or two with XTC. No number is drawn for tokens that a grammar forces, and
    mirostat depends on all earlier tokens: such requests are drafted as if they were greedy.
    """
    sampling = request.sampling
    if not sampling.temperature or sampling.mirostat or request.constraint is not None:
        return None
    state = SamplerState(sampling, ())
    state.processors = []
    state.bits.advance(request.num_generated * (2 if sampling.xtc_probability else 1))
    return state
