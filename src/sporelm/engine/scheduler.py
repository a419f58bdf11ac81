"""What to run next. There are no phases: every step catches up what is held to what is known.

One rule covers a prompt in chunks, a prefix that is held already, and decoding: a request wants its known tokens that
its sequence does not hold. Requests are served in the order of their arrival, up to the tokens that a step takes. When
pages run out, idle sequences give theirs, then the youngest request does; it computes them anew later.
"""

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from sporelm.engine.kv.pages import pages_for
from sporelm.engine.kv.sequence import KvSequence
from sporelm.engine.kv.store import Copies, SequenceStore
from sporelm.engine.request import FinishReason, Request
from sporelm.engine.sampling import NOT_A_TOKEN
from sporelm.engine.step import Part, Step
from sporelm.errors import BackendError, ContextOverflow, RequestError
from sporelm.ops.attention import PAGE


@dataclass(frozen=True)
class Limits:
    """What one engine holds at most."""

    max_context: int  # positions of a sequence
    model_context: int  # positions that the model was made for
    vocab: int
    token_budget: int  # tokens of a step
    max_batch: int  # requests that run together
    num_pages: int

    def __post_init__(self) -> None:
        for name in ("max_context", "vocab", "token_budget", "max_batch"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.num_pages < pages_for(self.max_context):
            raise RequestError(f"{self.num_pages} pages do not hold one context of {self.max_context} positions")

    def check_prompt(self, length: int) -> None:
        """Raise ContextOverflow for a prompt that does not fit; it is never cut."""
        if length <= self.max_context:
            return
        if self.max_context < self.model_context:
            remedy = f"shorten it, or raise --max-context (the model allows {self.model_context})"
        else:
            remedy = "shorten it: that is the model's own limit, which --max-context cannot raise"
        raise ContextOverflow(f"the prompt has {length} tokens, the context holds {self.max_context}: {remedy}")


class Advance(NamedTuple):
    """What a step did for a request: a new token, or its end, or both."""

    request: Request
    token: int | None
    finish_reason: FinishReason | None


class Scheduler:
    """Requests that wait and that run; its `store` holds their sequences."""

    def __init__(self, limits: Limits, store: SequenceStore) -> None:
        self.limits = limits
        self.store = store
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}  # by id, in the order of admission

    def add(self, request: Request) -> None:
        """Queue a request. Changes the scheduler. Raises ContextOverflow, RequestError."""
        self.check(request)
        sequence = request.sequence
        if sequence is not None:
            if self.uses(sequence):
                raise RequestError("this conversation is still answering: finish or close that answer first")
            if sequence.number not in self.store.sequences:
                raise RequestError("this conversation was closed: begin a new one")
        request.arrived = perf_counter()
        self.waiting.append(request)

    def check(self, request: Request) -> None:
        """Raise ContextOverflow or RequestError for a prompt that the model cannot take."""
        self.limits.check_prompt(request.num_prompt)
        lowest, highest = min(request.known), max(request.known)
        if lowest < 0 or highest >= self.limits.vocab:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"the prompt holds token {wrong}: the model knows 0 to {self.limits.vocab - 1}")

    def uses(self, sequence: KvSequence) -> bool:
        """Whether a request that waits or runs has this sequence."""
        return any(request.sequence is sequence for request in (*self.waiting, *self.running.values()))

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    def next_step(self) -> Step:
        """What to run now. Changes sequences (pages made ready) and admits requests; computes nothing."""
        parts: list[Part] = []
        copies: Copies = []
        budget = self.limits.token_budget
        for request in list(self.running.values()):
            if budget and request.id in self.running:
                budget -= self._schedule(request, budget, parts, copies)
        while budget and self.waiting and len(self.running) < self.limits.max_batch:
            request = self.waiting[0]
            if not self._admit(request):
                break
            taken = self._schedule(request, budget, parts, copies)
            if not taken:  # it waits again
                break
            budget -= taken
        if not parts and not self.idle:
            raise BackendError(f"nothing can run: all {self.limits.num_pages} pages are held; close a conversation")
        return Step(parts, copies)

    def commit(self, step: Step, tokens: list[int]) -> list[Advance]:
        """Take in what a step computed: `tokens` holds one for each part that wanted logits. Changes requests."""
        advances: list[Advance] = []
        row, now = 0, perf_counter()
        room = self.limits.max_context
        for part in step.parts:
            request = self.running[part.request]
            assert request.sequence is not None
            self.store.extend(request.sequence, part.tokens)
            if not part.rows:
                continue
            token = tokens[row]
            row += 1
            if token == NOT_A_TOKEN:
                request.error = (
                    f"logits are not numbers at position {part.position + len(part.tokens) - 1}: "
                    "the weights or the cache hold NaN or infinite values; check the model file"
                )
                self.store.discard(request.sequence)
                self.end(request, "error")
                advances.append(Advance(request, None, "error"))
                continue
            request.last_token_at = now
            if not request.first_token_at:
                request.first_token_at = now
            request.commit(token, room)
            if request.finish_reason:
                self.end(request, request.finish_reason)
            advances.append(Advance(request, token, request.finish_reason))
        return advances

    def end(self, request: Request, reason: FinishReason) -> None:
        """Take a request out. Changes the store: a temporary sequence goes, another keeps its KV and is idle.

        Does nothing for a request that is not here, such as one that was refused.
        """
        if self.running.get(request.id) is request:
            del self.running[request.id]
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        request.finish_reason = reason
        if request.sequence is not None:
            self._rest(request, request.sequence)

    def _schedule(self, request: Request, budget: int, parts: list[Part], copies: Copies) -> int:
        """Add a request's part of at most `budget` tokens; how many it has, 0 if it lost its pages instead."""
        sequence = request.sequence
        assert sequence is not None
        held = len(sequence.tokens)
        count = min(len(request.known) - held, budget)
        while not self.store.reserve(sequence, held + count, copies):
            youngest = next(reversed(self.running.values()))
            self._preempt(youngest)
            if youngest is request:
                return 0
        tokens = request.known[held : held + count]
        rows = int(held + count == len(request.known))
        parts.append(Part(request.id, tokens, held, sequence.table, rows))
        return count

    def _admit(self, request: Request) -> bool:
        """Let a waiting request run if all that it knows now finds pages. Changes the store and the queue."""
        sequence = request.sequence or self.store.new(request.salt)
        self.store.use(sequence)
        kept = self._reuse(request, sequence)
        if self.running and self.store.obtainable() < pages_for(len(request.known)) - pages_for(kept):
            self._rest(request, sequence)
            return False
        self.store.truncate(sequence, kept)
        if not request.started:
            request.started = perf_counter()
            self._account(request, kept)
        request.sequence = sequence
        self.waiting.popleft()
        self.running[request.id] = request
        return True

    def _reuse(self, request: Request, sequence: KvSequence) -> int:
        """Positions of the request's known tokens that its sequence holds; pages of others' that hold more become its
        own. The last known token is computed in any case: its logits are wanted."""
        known, chain, index = request.known, request.chain, self.store.pool.index
        kept = min(sequence.match(known), len(known) - 1)
        chain.root = sequence.chain.root
        chain.extend(known)
        pages = index.find(chain.keys[: (len(known) - 1) // PAGE])
        if len(pages) * PAGE <= kept:
            return kept
        self.store.adopt(sequence, pages, known, chain.keys)
        return len(pages) * PAGE

    def _account(self, request: Request, kept: int) -> None:
        """Note how much of a prompt needs no computing, and why not more. Changes the request and the counters."""
        index = self.store.pool.index
        request.cached_tokens = kept
        index.queries += request.num_prompt
        index.hits += kept
        if kept // PAGE < (request.num_prompt - 1) // PAGE:
            request.cache_miss = index.why_missed(request.chain, kept // PAGE, request.known)

    def _preempt(self, request: Request) -> None:
        """Send a running request back to the head of the queue without its pages. Changes the store."""
        assert request.sequence is not None
        self.store.truncate(request.sequence, 0)
        self._rest(request, request.sequence)
        del self.running[request.id]
        self.waiting.appendleft(request)

    def _rest(self, request: Request, sequence: KvSequence) -> None:
        """A request uses its sequence no longer: a temporary one goes, another is idle. Changes the store."""
        sequence.busy = False
        if request.temporary:
            self.store.drop(sequence)
            request.sequence = None
