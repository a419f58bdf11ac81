"""What to run next. There are no phases: every step catches up what is held to what is known.

One rule covers a prompt in chunks, a prefix that is held already, and decoding: a request wants its known tokens that
its sequence does not hold. In a step those that decode come first, and then prompts, as many tokens of them as let the
others' streams flow. When pages run out, idle sequences give theirs, then the least urgent and youngest request does;
it computes them anew later.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.kv_cache import KvCache, PageCopies
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.metrics import Load, Metrics
from sporelm.engine.prefill_budget import PrefillBudget
from sporelm.engine.prompt_rows import PromptRowsQueue
from sporelm.engine.queue import WaitingQueue
from sporelm.engine.request import FinishReason, Request
from sporelm.engine.sampling import NOT_A_TOKEN, SamplerOutput
from sporelm.engine.speculative import Speculation
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import BackendError, RequestError, shown
from sporelm.ops.paged_attention import PAGE


class StepOutput(NamedTuple):
    """What a step did for a request: a new token, or its end, or both."""

    request: Request
    token: int | None
    finish_reason: FinishReason | None


class StepBuilder:
    """A step that is being put together."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that may still join
        self.scheduled: dict[int, ScheduledSequence] = {}  # by request
        self.copies: PageCopies = []

    def add(self, scheduled: ScheduledSequence) -> None:
        self.scheduled[scheduled.request_id] = scheduled
        self.budget -= len(scheduled.tokens)

    def drop(self, request: int) -> None:
        scheduled = self.scheduled.pop(request, None)
        self.budget += len(scheduled.tokens) if scheduled else 0


class Scheduler:
    """Requests that wait and that run; its `kv_cache` holds their sequences."""

    def __init__(self, limits: EngineConfig, kv_cache: KvCache, speculation: Speculation | None = None) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self.prefill_budget = PrefillBudget(limits.prefill_tokens)
        self.waiting = WaitingQueue(limits.max_waiting)
        self.running: dict[int, Request] = {}  # by id, in the order of admission
        self.speculation = speculation
        self.owners: Counter[str] = Counter()  # of those that run
        self.adapters: dict[int, str] = {0: ""}  # what each that is loaded is known by; 0 is none
        self.texts = PromptRowsQueue()
        self.titles: Mapping[int, str] = {}  # what users call those that are loaded
        self.metrics = Metrics(self._load)

    def add(self, request: Request) -> None:
        """Queue a request. Changes the scheduler. Raises ContextOverflow, QueueFull, RequestError."""
        self.check(request)
        sequence = request.sequence
        if sequence is not None:
            if self.uses(sequence):
                raise RequestError("this conversation is still answering: finish or close that answer first")
            if sequence.id not in self.kv_cache.sequences:
                raise RequestError("this conversation was closed: begin a new one")
        request.arrived = perf_counter()
        self.waiting.add(request)
        request.fit(self.limits.max_context)

    def check(self, request: Request, *, rolls: bool = True) -> None:
        """Raise ContextOverflow or RequestError for a prompt that the model cannot take. `rolls`: whether what is asked
        could be done with a window that rolls."""
        if not request.roll:
            self.limits.check_prompt(request.num_prompt, rolls=rolls)
        if request.adapter not in self.adapters:
            raise RequestError(f"adapter {request.adapter} is not loaded: load it first")
        lowest, highest = min(request.known), max(request.known)
        if lowest < 0 or highest >= self.limits.vocab:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"the prompt holds token {shown(wrong)}: the model knows 0 to {self.limits.vocab - 1}")

    def uses_adapter(self, number: int) -> bool:
        """Whether a request that waits or runs, or a text, has this adapter."""
        return any(user.adapter == number for user in (*self.waiting, *self.running.values(), *self.texts))

    def uses(self, sequence: KvSequence) -> bool:
        """Whether a request that waits or runs has this sequence."""
        return any(request.sequence is sequence for request in (*self.waiting, *self.running.values()))

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.running and not self.waiting.lines

    def next_step(self) -> Step:
        """What to run now: nothing, where requests must wait for texts. Changes sequences (pages made ready) and admits
        requests; computes nothing."""
        builder = StepBuilder(self.limits.token_budget)
        self._fill(builder)
        if not builder.scheduled:
            self._fill(builder)  # whoever has just given way has left pages
        if not builder.scheduled and not self.idle and not self.texts:
            raise BackendError(f"nothing can run: all {self.limits.num_pages} pages are held; close a conversation")
        return Step(list(builder.scheduled.values()), builder.copies, self.kv_cache.pop_state_copies())

    def _fill(self, builder: StepBuilder) -> None:
        """Put parts into a step: of those that decode, then of prompts, then of requests that may begin."""
        decoding = [request for request in self.running.values() if request.decoding]
        guesses: dict[int, list[int]] = {}
        if self.speculation is not None and len(decoding) == len(self.running) and not self.waiting.lines:
            guesses = self.speculation.propose(decoding, self.limits.max_context)
        for request in decoding:
            if request.id in guesses or not self._schedule_one(request, builder):
                self._schedule(request, builder, guesses.get(request.id, ()))
        if builder.scheduled:
            beginning = min(len(self.running) + len(self.waiting), self.limits.max_batch) - len(decoding)
            builder.budget = min(builder.budget, self.prefill_budget.allowed(len(decoding), beginning))
        if len(decoding) < len(self.running):
            for request in sorted(self.running.values(), key=lambda request: request.priority):
                if not request.decoding:
                    self._schedule(request, builder)
        while builder.budget > 0 and len(self.running) < self.limits.max_batch:
            first = self.waiting.next(self.owners.__getitem__, self._ready)
            if first is None or not self._admit(first, builder) or not self._schedule(first, builder):
                break

    def commit(self, step: Step, output: SamplerOutput) -> list[StepOutput]:
        """Take in what a step computed. Changes requests."""
        outputs: list[StepOutput] = []
        gaps: list[float] = []  # between the last tokens of requests and these
        said, now = iter(output.tokens), perf_counter()
        simple = not (output.failures or output.forced or output.scores or output.ended)
        for scheduled in step.sequences:
            request = self.running[scheduled.request_id]
            assert request.sequence is not None
            if not scheduled.num_outputs:
                self.kv_cache.extend(request.sequence, scheduled.tokens)
                continue
            tokens = next(said)
            if request.id in output.failures:
                if len(tokens) > 1:  # what was said before the one with which it failed counts
                    outputs += self._say(request, scheduled, tokens[:-1], output)
                else:
                    self.kv_cache.accept_draft(request.sequence, scheduled.tokens, scheduled.num_outputs, 0)
                if request.finish_reason is None:
                    outputs.append(self._fail(request, f"the grammar: {output.failures[request.id]}"))
                continue
            if NOT_A_TOKEN in tokens:
                place = scheduled.position + len(scheduled.tokens) - scheduled.num_outputs + tokens.index(NOT_A_TOKEN)
                self.kv_cache.invalidate(request.sequence)
                reason = blamed(self.titles.get(request.adapter))
                outputs.append(self._fail(request, f"logits are not numbers at position {place}: {reason}"))
                continue
            if request.first_token_at:
                gaps.append(now - request.last_token_at)
            else:
                request.first_token_at = now
                self.metrics.began(request)
            request.last_token_at = now
            if simple and scheduled.num_outputs == 1:
                outputs.append(self._say_one(request, scheduled.tokens, tokens[0]))
                continue
            if scheduled.num_outputs > 1:
                self.metrics.guessed(scheduled.num_outputs - 1, len(tokens) - 1)
            outputs += self._say(request, scheduled, tokens, output)
        failed = sum(step_output.token is None for step_output in outputs)
        self.metrics.committed(len(outputs) - failed, gaps)
        return outputs

    def _fail(self, request: Request, reason: str) -> StepOutput:
        """End a request with an error."""
        request.error = reason
        self.end(request, "error")
        return StepOutput(request, None, "error")

    def restart_page(self, request: Request) -> None:
        """A running request computes its last page, which is not full, anew. Changes the store."""
        if request.sequence is not None:
            self.kv_cache.truncate(request.sequence, request.sequence.length // PAGE * PAGE)

    def _say(
        self, request: Request, scheduled: ScheduledSequence, tokens: list[int], output: SamplerOutput
    ) -> list[StepOutput]:
        """A request says tokens, of which all but the last were guessed, and what must follow, until it ends. Changes
        it."""
        scores, forced = output.scores.get(request.id, []), output.forced.get(request.id, [])
        sequence, outputs = request.sequence, list[StepOutput]()
        assert sequence is not None
        request.drafted += scheduled.num_outputs - 1
        request.accepted += len(tokens) - 1
        settled = self.kv_cache.accept_draft(sequence, scheduled.tokens, scheduled.num_outputs, len(tokens))
        for number, token in enumerate([*tokens, *forced]):
            if 0 < number < len(tokens) and not settled:
                self.kv_cache.extend(sequence, tokens[number - 1 : number])
            request.scores += scores[number : number + 1]
            self._commit(request, sequence, token)
            is_last = number == len(tokens) + len(forced) - 1
            if is_last and request.finish_reason is None and request.id in output.ended:
                request.finish_reason = "stop"
            outputs.append(StepOutput(request, token, request.finish_reason))
            if request.finish_reason:
                self.end(request, request.finish_reason)
                break
        return outputs

    def _say_one(self, request: Request, held: Sequence[int], token: int) -> StepOutput:
        """`_say` as it mostly is: a token that nobody guessed, and nothing that must follow. Changes the request."""
        assert request.sequence is not None
        self.kv_cache.extend(request.sequence, held)
        self._commit(request, request.sequence, token)
        reason = request.finish_reason
        if reason:
            self.end(request, reason)
        return StepOutput(request, token, reason)

    def _commit(self, request: Request, sequence: KvSequence, token: int) -> None:
        """A token more is known. Changes the request; of a sequence whose text has rolled only its beginning stays."""
        known = request.known
        request.commit(token, self.limits.max_context)
        if request.known is not known:  # of a text that repeats itself all may be held: its last token's logits are not
            self.kv_cache.truncate(sequence, min(sequence.match_length(request.known), len(request.known) - 1))

    def end(self, request: Request, reason: FinishReason) -> None:
        """Take a request out. Changes the store: a temporary sequence goes, another keeps its KV and is idle.

        Does nothing for a request that is not here, such as one that was refused.
        """
        if self.running.get(request.id) is request:
            self._leave(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        request.finish_reason = reason
        request.twin = None
        self.metrics.ended(request, reason, perf_counter())
        if request.sequence is not None:
            self._rest(request, request.sequence)

    def _schedule_one(self, request: Request, builder: StepBuilder) -> bool:
        """`_schedule` as it mostly is: one token, for which there is a page of the sequence's own; False if not so."""
        sequence, known = request.sequence, request.known
        if sequence is None or request.id not in self.running:
            return True  # it has just given way to another
        held = len(sequence.tokens)
        if held + 1 != len(known) or builder.budget <= 0 or not self.kv_cache.is_writable(sequence, held):
            return False
        builder.add(
            ScheduledSequence(
                request.id, known[held:], held, sequence.page_table, 1, request.adapter, sequence.state_slot
            )
        )
        return True

    def _schedule(self, request: Request, builder: StepBuilder, guesses: Sequence[int] = ()) -> bool:
        """Add a request's part of at most the draft's budget of tokens; False if it lost its pages instead."""
        sequence = request.sequence
        if builder.budget <= 0 or request.id not in self.running:
            return False
        assert sequence is not None
        held = len(sequence.tokens)
        count = self.kv_cache.max_step_end(sequence, held + min(len(request.known) - held, builder.budget)) - held
        guesses = self.kv_cache.fit_drafts(sequence, held + count, guesses[: builder.budget - count])
        if guesses and not self.kv_cache.begin_draft(sequence):
            guesses = ()
        while not self.kv_cache.reserve(sequence, held + count + len(guesses), builder.copies):
            victim = max(self.running.values(), key=lambda each: (each.priority, each.id))
            builder.drop(victim.id)
            self._preempt(victim)
            if victim is request:
                return False
        tokens = [*request.known[held : held + count], *guesses]
        rows = len(guesses) + (held + count == len(request.known))
        builder.add(
            ScheduledSequence(request.id, tokens, held, sequence.page_table, rows, request.adapter, sequence.state_slot)
        )
        return True

    def _ready(self, request: Request) -> bool:
        """Whether a request need wait neither for its twin nor, while others run, for a file."""
        twin = request.twin
        if twin is not None and twin.finish_reason is None and twin.num_computed < twin.num_shown:
            return False
        if self.kv_cache.offload_store is None or request.sequence is None or not self.running:
            return True
        return self.kv_cache.offload_store.is_ready(request.sequence)

    def _admit(self, request: Request, builder: StepBuilder) -> bool:
        """Let a waiting request run if all that it knows now finds pages, and no text goes first. Changes the store and
        the queue."""
        if self.texts.hold_back(request):
            return False
        if (
            (builder.copies or self.kv_cache.has_state_copies)
            and request.sequence is not None
            and self.kv_cache.is_offloaded(request.sequence)
        ):
            return False  # waking writes to pages at once, which may be those that are to be copied
        sequence = request.sequence or self._begin(request)
        self.kv_cache.acquire(sequence)
        kept = self._reuse(request, sequence)
        missing = count_pages(len(request.known)) - count_pages(kept) + self.texts.num_pages
        states = self.kv_cache.num_missing_states(sequence) + len(self.texts.begun)
        if (self.running or self.texts.begun) and not self.kv_cache.can_allocate(missing, states):
            self._rest(request, sequence)
            self.texts.short = request
            return False
        if self.texts.short is request:
            self.texts.short = None
        self.kv_cache.truncate(sequence, kept)
        self.kv_cache.restore(sequence, request.known[:-1], builder.copies)
        if not request.started:
            request.started = perf_counter()
            self._account(request, sequence.length)
            self.metrics.admitted(request)
        request.sequence, request.twin = sequence, None
        self.kv_cache.set_snapshot_positions(sequence, len(request.known), request.page_hashes.hashes)
        self.waiting.remove(request)
        self.running[request.id] = request
        self.owners[request.owner] += 1
        return True

    def _begin(self, request: Request) -> KvSequence:
        """A sequence for a request: with the pages of its twin, if that has some."""
        if request.twin is not None and request.twin.sequence is not None:
            return self.kv_cache.fork(request.twin.sequence)
        return self.kv_cache.new_sequence(request.salt, self.adapters[request.adapter])

    def _reuse(self, request: Request, sequence: KvSequence) -> int:
        """Positions of the request's known tokens that its sequence holds; pages of others' that hold more become its
        own. The last known token is computed in any case: its logits are wanted."""
        known, page_hashes = request.known, request.page_hashes
        self.kv_cache.set_adapter(sequence, self.adapters[request.adapter])
        kept = self.kv_cache.usable_length(sequence, min(sequence.match_length(known), len(known) - 1))
        page_hashes.root, page_hashes.adapter = sequence.page_hashes.root, sequence.page_hashes.adapter
        page_hashes.extend(known)
        pages = self.kv_cache.find_prefix(page_hashes.hashes[: (len(known) - 1) // PAGE])
        if len(pages) * PAGE <= kept:
            return kept
        self.kv_cache.attach_prefix(sequence, pages, known, page_hashes.hashes)
        return len(pages) * PAGE

    def _account(self, request: Request, kept: int) -> None:
        """Note how much of a prompt needs no computing, and why not more. Changes the request and the counters."""
        index = self.kv_cache.prefix_cache
        request.cached_tokens = kept
        index.num_query_tokens += request.num_shown
        index.num_hit_tokens += kept
        if kept // PAGE < (request.num_shown - 1) // PAGE:
            request.cache_miss = self.kv_cache.explain_miss(request.page_hashes, kept // PAGE, request.known)

    def _preempt(self, request: Request) -> None:
        """Send a running request back to the head of its line without its pages. Changes the store."""
        self.metrics.preempted()
        assert request.sequence is not None
        self.kv_cache.truncate(request.sequence, 0)
        self._leave(request)
        self._rest(request, request.sequence)
        self.waiting.put_back(request)

    def _load(self) -> Load:
        """How busy it is. Any thread may ask: what changes meanwhile is copied first."""
        running, index = list(self.running.values()), self.kv_cache.prefix_cache
        sequences = [sequence for request in running if (sequence := request.sequence) is not None]
        held = {page for sequence in sequences for page in list(sequence.pages)}
        waiting = sum(map(len, list(self.waiting.lines.values()))) + sum(not text.begun for text in self.texts)
        pages, kept = self.limits.num_pages, self.limits.num_pages - self.kv_cache.pages.num_free
        load, states = (
            Load(len(running), waiting, pages, len(held), kept, index.num_query_tokens, index.num_hit_tokens),
            self.kv_cache.states,
        )
        if states is None:
            return load
        kept, blank = len(states.cached), len(states.uncached)
        return load._replace(held_states=states.num_slots - kept - blank, kept_states=kept, free_states=blank)

    def _leave(self, request: Request) -> None:
        """A request runs no longer."""
        del self.running[request.id]
        self.owners[request.owner] -= 1
        if not self.owners[request.owner]:
            del self.owners[request.owner]

    def _rest(self, request: Request, sequence: KvSequence) -> None:
        """A request uses its sequence no longer: a temporary one goes, another is idle. Changes the store."""
        self.kv_cache.release(sequence)
        if request.temporary:
            self.kv_cache.drop(sequence)
            request.sequence = None


def blamed(adapter: str | None) -> str:
    """What may be at fault where scores are not numbers, and what to do; `adapter` is what it is called, if any."""
    if adapter is None:
        return "the weights or the cache hold NaN or infinite values; check the model file"
    return f"values of the adapter {adapter!r} are NaN or too large: try without it, or load it with a smaller scale"
