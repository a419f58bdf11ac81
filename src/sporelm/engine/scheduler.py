"""The scheduler: decides what each step computes. There are no phases, one rule covers them all.

A request wants the tokens of its context that its sequence does not hold: a prompt in chunks, the rest of a cached
prefix, or one token of a decode. In a step the requests that decode come first, and then prompts, with as many tokens
as the streams of the others allow. When pages run out, idle sequences are evicted, then the least urgent and youngest
request is preempted, and recomputed later.

A request for rows (`Request.output`) is a prompt without an answer: it shares the queue, the pages and the budget, and
logits also the steps. Hidden states come from another program, in steps of their own, which take turns with the others.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.image_encoder import ImageEncoder
from sporelm.engine.kv.kv_cache import KvCache, PageCopies
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.kv.prefix_cache import PageHashes, common_prefix_length
from sporelm.engine.metrics import Load, Metrics
from sporelm.engine.prefill_budget import PrefillBudget
from sporelm.engine.prompt_images import ScheduledImage
from sporelm.engine.queue import WaitingQueue
from sporelm.engine.request import FinishReason, Request, Rows
from sporelm.engine.sampling import NOT_A_TOKEN, SamplerOutput
from sporelm.engine.speculative import Speculation
from sporelm.engine.step import UNKNOWN_TOKENS, ScheduledSequence, Step
from sporelm.errors import BackendError, QueueFull, RequestError, safe_repr
from sporelm.ops.paged_attention import PAGE
from sporelm.units import in_units

MAX_WAITING_IMAGE_BYTES = 1 << 30  # patches of the images of requests that wait


class StepOutput(NamedTuple):
    """The result of a step for one request: a new token, or its end, or both."""

    request: Request
    token: int | None
    finish_reason: FinishReason | None


class StepBuilder:
    """Collects the sequences of a step."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that may still be added
        self.is_hidden = False  # whether the step computes hidden states, not logits
        self.has_rows = False  # whether any sequence is not sampled
        self.scheduled: dict[int, ScheduledSequence] = {}  # by request id
        self.copies: PageCopies = []

    def add(self, scheduled: ScheduledSequence) -> None:
        self.scheduled[scheduled.request_id] = scheduled
        self.budget -= len(scheduled.tokens)

    def build(self, state_copies: tuple[tuple[int, int], ...]) -> Step:
        """Return the step."""
        sequences = list(self.scheduled.values())
        if self.has_rows:
            sequences.sort(key=lambda scheduled: not scheduled.is_sampled)
        return Step(sequences, self.copies, state_copies)

    def drop(self, request_id: int) -> None:
        scheduled = self.scheduled.pop(request_id, None)
        self.budget += len(scheduled.tokens) if scheduled else 0


class Scheduler:
    """The waiting and the running requests; `kv_cache` holds their sequences."""

    def __init__(self, limits: EngineConfig, kv_cache: KvCache, speculation: Speculation | None = None) -> None:
        self.limits = limits
        self.token_budget = limits.token_budget  # of the next steps; less after one that ran out of memory
        self.kv_cache = kv_cache
        self.prefill_budget = PrefillBudget(limits.prefill_tokens)
        self.waiting = WaitingQueue(limits.max_waiting)
        self.running: dict[int, Request] = {}  # by id, in the order of admission
        self.speculation = speculation
        self.num_running_by_tenant: Counter[str] = Counter()
        self.num_running_hidden = 0  # requests for hidden states
        self.num_turns = 0  # of requests that decode, where a step takes fewer of them than there are
        self.was_hidden = False  # whether the last step computed hidden states
        self.adapter_identities: dict[int, str] = {0: ""}  # of the loaded adapters, by id; 0 is none
        self.adapter_names: Mapping[int, str] = {}  # as users know them
        # Of asynchronous devices (overlap.py): the rows of the step in flight, by request id, and whether the
        # next step must wait for it.
        self.in_flight: Mapping[int, ScheduledSequence] = {}
        self.must_drain = False
        self.image_encoder: ImageEncoder | None = None  # of a vision model
        self.attends_images_both_ways = False  # so that an image must be in one step
        self.next_image_id: int | None = None  # of a request whose image had no room beside others: it goes first
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
        request.arrival_time = perf_counter()
        self.waiting.add(request)
        request.roll_context(self.limits.max_context)

    def check(self, request: Request) -> None:
        """Raise ContextOverflow or RequestError for a prompt that the model cannot take."""
        if not request.roll:
            self.limits.check_prompt(request.num_prompt, rolls=request.output == "tokens")
        if request.adapter_id not in self.adapter_identities:
            raise RequestError(f"adapter {request.adapter_id} is not loaded: load it first")
        if request.has_known_ids:
            return
        if request.images:
            self._check_images(request)
        known_ids = request.vocabulary_ids if request.images else request.context_ids
        lowest, highest = min(known_ids, default=0), max(known_ids, default=0)
        request.has_known_ids = lowest >= 0 and highest < self.limits.vocab
        if not request.has_known_ids:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(
                f"the prompt holds token {safe_repr(wrong)}: the model knows 0 to {self.limits.vocab - 1}"
            )

    def _check_images(self, request: Request) -> None:
        """Raise RequestError for images if the model has no vision tower, or one that is longer than a step."""
        if self.image_encoder is None:
            raise RequestError("this model does not see images: load one with a vision tower (the option mmproj)")
        for image in request.images:
            self.image_encoder.check(image)
        if not self.fits_images(request):
            raise RequestError(self.explain_long_image(request))
        waiting = [image for each in self.waiting for image in each.images]
        patches = {id(image.image.patches): image.image.patches.nbytes for image in (*waiting, *request.images)}
        if waiting and (nbytes := sum(patches.values())) > MAX_WAITING_IMAGE_BYTES:
            raise QueueFull(
                f"images: too many wait (got {in_units(nbytes)}; allowed {in_units(MAX_WAITING_IMAGE_BYTES)}). Try "
                "again later."
            )

    def fits_images(self, request: Request) -> bool:
        """Return whether each image of a request that must be in one step fits into one."""
        return not self.attends_images_both_ways or all(image.num_rows <= self.token_budget for image in request.images)

    def explain_long_image(self, request: Request) -> str:
        """Return the error of a request that `fits_images` refuses."""
        largest = max(image.num_rows for image in request.images)
        return (
            f"image: too many rows for a step (got {largest}; allowed {self.token_budget}). Raise token_budget, or "
            "send a smaller picture."
        )

    def uses_adapter(self, adapter_id: int) -> bool:
        """Return whether a waiting or running request has this adapter."""
        return any(each.adapter_id == adapter_id for each in (*self.waiting, *self.running.values()))

    def uses(self, sequence: KvSequence) -> bool:
        """Return whether a waiting or running request has this sequence."""
        return any(request.sequence is sequence for request in (*self.waiting, *self.running.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self.running and not self.waiting.queues

    def next_step(self) -> Step:
        """Return the next step. Admits requests and reserves their pages, but computes nothing.

        Steps for hidden states take turns with the others, if both kinds run. While a step is in flight, the next one
        continues from it; it may be empty.
        """
        self.must_drain = False
        builder = StepBuilder(self.token_budget)
        builder.is_hidden = self.num_running_hidden > 0 and not self.was_hidden
        for _ in range(3):  # a request that was admitted may need the other kind, one that was preempted released pages
            builder.budget = self.token_budget
            self._fill(builder)
            if builder.scheduled or self.must_drain:
                break
            builder.is_hidden = not builder.is_hidden
        if not builder.scheduled:
            if not self.in_flight and not self.waits_for_images:
                raise BackendError(f"nothing can run: all {self.limits.num_pages} pages are held; close a conversation")
            return Step([], [])
        self.was_hidden = builder.is_hidden
        return builder.build(self.kv_cache.pop_state_copies())

    @property
    def waits_for_images(self) -> bool:
        """Whether a request waits for the rows of its images."""
        return self.image_encoder is not None and self.image_encoder.has_work

    def _fill(self, builder: StepBuilder) -> None:
        """Schedule requests that decode, then running prompts, then waiting requests."""
        running, in_flight = self.running.values(), self.in_flight
        if in_flight:
            decoding = [request for request in running if self._is_decoding(request)]
        else:
            decoding = [request for request in running if request.is_decoding]
        if len(decoding) > builder.budget:  # steps have become shorter: the requests take turns
            turn = self.num_turns % len(decoding)
            decoding = decoding[turn:] + decoding[:turn]
            self.num_turns = turn + max(0, builder.budget)
        if builder.is_hidden:
            self._fill_hidden(builder, len(decoding))
            return
        if self.next_image_id is not None:
            first = self.running.get(self.next_image_id)
            self.next_image_id = None
            if first is not None and first.output != "hidden" and first.id not in in_flight:
                self._schedule(first, builder)
        drafts: dict[int, list[int]] = {}
        if self.speculation is not None and len(decoding) == len(self.running) and not self.waiting.queues:
            drafts = self.speculation.propose(decoding, self.limits.max_context)
        for request in decoding:
            if in_flight and request.id in in_flight:
                self._schedule_ahead(request, in_flight[request.id], builder)
            elif request.id in drafts or not self._schedule_decode(request, builder):
                self._schedule(request, builder, drafts.get(request.id, ()))
        if builder.scheduled:
            num_beginning = min(len(self.running) + len(self.waiting), self.limits.max_batch) - len(decoding)
            builder.budget = min(builder.budget, self.prefill_budget.num_allowed(len(decoding), num_beginning))
        if len(decoding) < len(self.running):
            self._schedule_prompts(builder)
        self._admit_waiting(builder)

    def _is_decoding(self, request: Request) -> bool:
        """Return whether a request's prompt is computed, when the step in flight is."""
        scheduled = self.in_flight.get(request.id)
        return request.is_decoding if scheduled is None else scheduled.num_outputs > 0 and scheduled.is_sampled

    def _fill_hidden(self, builder: StepBuilder, num_decoding: int) -> None:
        """Schedule running prompts whose hidden states are wanted, then waiting requests.

        If requests decode, the step is as short as their streams allow.
        """
        if num_decoding:
            builder.budget = min(builder.budget, self.prefill_budget.num_allowed(num_decoding))
        self._schedule_prompts(builder)
        self._admit_waiting(builder)

    def _schedule_prompts(self, builder: StepBuilder) -> None:
        """Schedule the running prompts of the step's kind, the urgent ones first."""
        for request in sorted(self.running.values(), key=lambda request: request.priority):
            if (request.output == "hidden") != builder.is_hidden or self._is_decoding(request):
                continue
            if request.id in builder.scheduled:
                continue
            if request.id in self.in_flight:
                self._schedule_ahead(request, self.in_flight[request.id], builder)
            else:
                self._schedule(request, builder)

    def _admit_waiting(self, builder: StepBuilder) -> None:
        """Admit waiting requests to the step, and at last one for which a step of the other kind must come."""
        while builder.budget > 0 and len(self.running) < self.limits.max_batch:
            first = self.waiting.next(self.num_running_by_tenant.__getitem__, self._is_ready)
            if first is None or not self._admit(first, builder):
                break
            if (first.output == "hidden") != builder.is_hidden or not self._schedule(first, builder):
                break

    def deliver_rows(self, step: Step, rows: Rows) -> list[StepOutput]:
        """Take in the sequences of a step whose rows are wanted; `rows` are those of all sequences. Changes requests.

        An error of a request's `on_rows` ends that request only.
        """
        outputs: list[StepOutput] = []
        end = 0
        for scheduled in step.sequences:
            begin, end = end, end + scheduled.num_outputs
            request = self.running.get(scheduled.request_id)
            if scheduled.is_sampled or request is None or request.sequence is None:
                continue
            self.kv_cache.extend(request.sequence, scheduled.tokens)
            try:
                request.deliver_rows(scheduled.position, rows[begin:end])
            except Exception as error:
                outputs.append(self.fail_rows(request, error))
            except BaseException:
                self.fail_rows(request, BackendError("a step was interrupted while its rows were delivered"))
                raise
            if request.finish_reason is None and request.num_delivered == request.num_prompt:
                self.end(request, "stop")
                outputs.append(StepOutput(request, None, "stop"))
        return outputs

    def fail_rows(self, request: Request, error: Exception) -> StepOutput:
        """End a request for rows with an error, which its own caller raises."""
        request.exception = error
        return self._fail(request, str(error))

    def commit(self, step: Step, sampled: SamplerOutput, discarded: Collection[int] = ()) -> list[StepOutput]:
        """Take in the sampled tokens of a step, but for the requests in `discarded`. Changes requests."""
        outputs: list[StepOutput] = []
        gaps: list[float] = []  # seconds since the last tokens of the same requests
        sampled_tokens = iter(sampled.tokens)
        now = perf_counter()
        is_plain = not (sampled.failures or sampled.forced or sampled.logprobs or sampled.ended)
        sequences, running, has_states = step.sequences, self.running, self.kv_cache.states is not None
        if not sequences[-1].is_sampled:  # the last ones: see `deliver_rows`
            sequences = [scheduled for scheduled in sequences if scheduled.is_sampled]
        for scheduled in sequences:
            request = running.get(scheduled.request_id)
            if request is None or (discarded and request.id in discarded):
                if scheduled.num_outputs:
                    next(sampled_tokens)
                continue
            assert request.sequence is not None
            if has_states:
                self.kv_cache.commit_launch(request.sequence, scheduled.state_slot)
            if not scheduled.num_outputs:
                self.kv_cache.extend(request.sequence, scheduled.tokens)
                continue
            tokens = next(sampled_tokens)
            computed = scheduled.tokens
            if computed is UNKNOWN_TOKENS:  # the step before has sampled it
                computed = request.context_ids[scheduled.position :]
            if request.id in sampled.failures:
                if len(tokens) > 1:  # the tokens before the one that failed count
                    outputs += self._append_tokens(request, computed, scheduled.num_outputs, tokens[:-1], sampled)
                else:
                    self.kv_cache.accept_draft(request.sequence, computed, scheduled.num_outputs, 0)
                if request.finish_reason is None:
                    outputs.append(self._fail(request, f"the grammar: {sampled.failures[request.id]}"))
                continue
            if NOT_A_TOKEN in tokens:
                first_output = scheduled.position + len(scheduled.tokens) - scheduled.num_outputs
                position = first_output + tokens.index(NOT_A_TOKEN)
                self.kv_cache.invalidate(request.sequence)
                reason = explain_nan(self.adapter_names.get(request.adapter_id))
                outputs.append(self._fail(request, f"logits are not numbers at position {position}: {reason}"))
                continue
            if request.first_token_time:
                gaps.append(now - request.last_token_time)
            else:
                request.first_token_time = now
                self.metrics.record_first_token(request)
            request.last_token_time = now
            if is_plain and scheduled.num_outputs == 1:
                outputs.append(self._append_token(request, computed, tokens[0]))
                continue
            if scheduled.num_outputs > 1:
                self.metrics.record_draft(scheduled.num_outputs - 1, len(tokens) - 1)
            outputs += self._append_tokens(request, computed, scheduled.num_outputs, tokens, sampled)
        num_failed = sum(output.token is None for output in outputs)
        self.metrics.record_commit(len(outputs) - num_failed, gaps)
        return outputs

    def _fail(self, request: Request, reason: str) -> StepOutput:
        """End a request with an error."""
        request.error = reason
        self.end(request, "error")
        return StepOutput(request, None, "error")

    def recompute_last_page(self, request: Request) -> None:
        """Drop the last page of a running request, if it is not full. Changes the cache."""
        if request.sequence is not None:
            self.kv_cache.truncate(request.sequence, request.sequence.length // PAGE * PAGE)

    def recompute_all(self) -> None:
        """Put all running requests back into the queue, because the memory of the cache was lost. Changes the cache."""
        for request in reversed(self.running.copy().values()):
            self._preempt(request)
        self.kv_cache.invalidate_all()

    def _append_tokens(
        self, request: Request, computed: Sequence[int], num_outputs: int, tokens: list[int], sampled: SamplerOutput
    ) -> list[StepOutput]:
        """Append accepted draft tokens, the last sampled one and forced ones, until the request ends.

        Changes the request.
        """
        logprobs, forced = sampled.logprobs.get(request.id, []), sampled.forced.get(request.id, [])
        sequence, outputs = request.sequence, list[StepOutput]()
        assert sequence is not None
        request.num_draft_tokens += num_outputs - 1
        request.num_accepted_tokens += len(tokens) - 1
        is_settled = self.kv_cache.accept_draft(sequence, computed, num_outputs, len(tokens))
        for number, token in enumerate([*tokens, *forced]):
            if 0 < number < len(tokens) and not is_settled:
                self.kv_cache.extend(sequence, tokens[number - 1 : number])
            request.logprobs += logprobs[number : number + 1]
            self._commit_token(request, sequence, token)
            is_last = number == len(tokens) + len(forced) - 1
            if is_last and request.finish_reason is None and request.id in sampled.ended:
                request.finish_reason = "stop"
            outputs.append(StepOutput(request, token, request.finish_reason))
            if request.finish_reason:
                self.end(request, request.finish_reason)
                break
        return outputs

    def _append_token(self, request: Request, computed: Sequence[int], token: int) -> StepOutput:
        """The common case of `_append_tokens`: no draft and no grammar. Changes the request."""
        assert request.sequence is not None
        self.kv_cache.extend(request.sequence, computed)
        self._commit_token(request, request.sequence, token)
        reason = request.finish_reason
        if reason:
            self.end(request, reason)
        return StepOutput(request, token, reason)

    def _commit_token(self, request: Request, sequence: KvSequence, token: int) -> None:
        """Append a token. If the context rolls, only the beginning of the sequence stays. Changes both."""
        context_ids = request.context_ids
        request.append_token(token, self.limits.max_context)
        if request.context_ids is not context_ids:
            # A text that repeats itself may be held as a whole, but the logits of its last token are not.
            num_equal = sequence.match_length(request.context_ids)
            self.kv_cache.truncate(sequence, min(num_equal, len(request.context_ids) - 1))

    def end(self, request: Request, reason: FinishReason) -> None:
        """Remove a request, if it waits or runs. Changes the cache: its sequence is idle, or dropped if temporary."""
        if self.running.get(request.id) is request:
            self._remove_running(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        request.finish_reason = reason
        request.parent = None
        if self.image_encoder is not None:
            self.image_encoder.forget(request)
        scheduled, sequence = self.in_flight.get(request.id), request.sequence
        if scheduled is not None and sequence is not None and scheduled.state_slot == sequence.state_slot:
            self.kv_cache.rollback_step(sequence)  # the step in flight writes to its state
        self.metrics.record_end(request, reason, perf_counter())
        if request.sequence is not None:
            self._release_sequence(request, request.sequence)

    def _schedule_decode(self, request: Request, builder: StepBuilder) -> bool:
        """The common case of `_schedule`: one token, for which the sequence has a page of its own; else False."""
        sequence, context_ids = request.sequence, request.context_ids
        if sequence is None or request.id not in self.running:
            return True  # it has just been preempted
        held = len(sequence.tokens)
        if request.rope_positions is not None:
            return False
        if held + 1 != len(context_ids) or builder.budget <= 0 or not self.kv_cache.is_writable(sequence, held):
            return False
        builder.add(
            ScheduledSequence(
                request.id,
                context_ids[held:],
                held,
                sequence.page_table,
                1,
                request.adapter_id,
                sequence.state_slot,
            )
        )
        return True

    def _schedule(self, request: Request, builder: StepBuilder, draft: Sequence[int] = ()) -> bool:
        """Add tokens of a request to the step, within its budget; False if the request was preempted instead."""
        sequence = request.sequence
        if builder.budget <= 0 or request.id not in self.running:
            return False
        assert sequence is not None
        held = len(sequence.tokens)
        num_wanted = min(len(request.context_ids) - held, builder.budget)
        count = self.kv_cache.max_step_end(sequence, held + num_wanted) - held
        if request.images:
            count = self._fit_images(request, held, count, builder)
            if not count:
                return request.id in self.running
        draft = self.kv_cache.fit_drafts(sequence, held + count, draft[: builder.budget - count])
        if draft and not self.kv_cache.begin_draft(sequence):
            draft = ()
        while not self.kv_cache.reserve(sequence, held + count + len(draft), builder.copies):
            if self.in_flight:  # a victim's tokens may be on the way
                self.must_drain = True
                builder.budget = 0
                return False
            victim = max(self.running.values(), key=lambda each: (each.priority, each.id))
            builder.drop(victim.id)
            self._preempt(victim)
            if victim is request:
                return False
        tokens = request.context_ids[held : held + count]
        if draft:
            tokens += draft
        is_sampled = request.output == "tokens"
        if not is_sampled:
            builder.has_rows = True
        num_outputs = len(draft) + (held + count == len(request.context_ids)) if is_sampled else count
        builder.add(
            ScheduledSequence(
                request.id,
                tokens,
                held,
                sequence.page_table,
                num_outputs,
                request.adapter_id,
                sequence.state_slot,
                is_sampled,
                *self._image_fields(request, held, held + len(tokens)),
            )
        )
        return True

    def _fit_images(self, request: Request, held: int, count: int, builder: StepBuilder) -> int:
        """Return how many of the next `count` tokens a step may compute.

        An image that is attended both ways is in one step, whose budget may grow for it; 0 if there is no room. A
        request whose image has lost its rows is preempted, so that they are computed again.
        """
        end = held + count
        for image in request.images:
            if image.stop <= held or image.start >= end:
                continue
            if image.rows is None:
                builder.drop(request.id)
                self._preempt(request)
                return 0
            if self.attends_images_both_ways and image.stop > end:
                num_used = sum(len(scheduled.tokens) for scheduled in builder.scheduled.values())
                if image.start > held:
                    end = image.start
                elif image.stop - held <= self.token_budget - num_used:
                    end = image.stop
                else:
                    self.next_image_id = request.id
                    return 0
        return end - held

    def _image_fields(
        self, request: Request, begin: int, end: int
    ) -> tuple[tuple[ScheduledImage, ...], NDArray[np.int32] | None]:
        """Return the last fields of a `ScheduledSequence`: images and rotary positions of a context's tokens."""
        if not request.images:
            return (), None
        images = []
        for image in request.images:
            first, last = max(image.start, begin), min(image.stop, end)
            if first < last:
                assert image.rows is not None
                values = image.rows[first - image.start : last - image.start]
                images.append(ScheduledImage(first - begin, values, image.start, image.stop))
        rope = request.rope_positions
        return tuple(images), None if rope is None else rope.between(begin, end)

    def _schedule_ahead(self, request: Request, scheduled: ScheduledSequence, builder: StepBuilder) -> None:
        """Add the tokens of a request after the tokens that the step in flight computes, within the step's budget.

        The token that is sampled there is UNKNOWN. Nothing is added if the request surely ends with it. Requests for
        rows are not scheduled ahead: their steps are drained.
        """
        sequence, held = request.sequence, scheduled.position + len(scheduled.tokens)
        assert sequence is not None
        if scheduled.num_outputs:
            num_known = len(request.context_ids) + 1
            if request.num_generated + 1 >= request.max_tokens or num_known > self.limits.max_context:
                return
            count = 1
        else:
            num_known = len(request.context_ids)
            num_wanted = min(num_known - held, builder.budget)
            count = self.kv_cache.max_step_end(sequence, held + num_wanted, held) - held
            if request.images:
                count = self._fit_images(request, held, count, builder)
        if count <= 0 or builder.budget <= 0:
            return
        is_writable = self.kv_cache.states is None and count == 1 and self.kv_cache.is_writable(sequence, held)
        if not is_writable and not self.kv_cache.reserve_ahead(sequence, held + count, builder.copies):
            self.must_drain = True
            builder.budget = 0
            return
        state_slot = sequence.launched_slots[-1] if sequence.launched_slots else sequence.state_slot
        builder.add(
            ScheduledSequence(
                request.id,
                request.context_ids[held : held + count] or UNKNOWN_TOKENS,
                held,
                sequence.page_table,
                int(held + count == num_known),
                request.adapter_id,
                state_slot,
                True,
                *self._image_fields(request, held, held + count),
            )
        )

    def find_discarded(self, step: Step, corrected: Collection[int]) -> set[int]:
        """Return the requests of a launched step whose rows do not count, after the step before was committed.

        They have ended, go on with another token than the device has taken (`corrected`) or with several, or were
        rolled. Changes the cache: the states that the rows write are given back.
        """
        discarded = set[int]()
        for scheduled in step.sequences:
            request = self.running.get(scheduled.request_id)
            if request is not None and self._is_valid(request, scheduled, corrected):
                continue
            discarded.add(scheduled.request_id)
            if request is not None and request.sequence is not None:
                self.kv_cache.discard_launches(request.sequence)
        return discarded

    def _is_valid(self, request: Request, scheduled: ScheduledSequence, corrected: Collection[int]) -> bool:
        end = scheduled.position + len(scheduled.tokens)
        if request.sequence is None or len(request.sequence.tokens) != scheduled.position:
            return False
        if scheduled.tokens is UNKNOWN_TOKENS:
            return len(request.context_ids) == end and request.id not in corrected
        return request.context_ids[scheduled.position : end] == list(scheduled.tokens)

    def _is_ready(self, request: Request) -> bool:
        """Return whether a request need wait neither for its parent, nor for the rows of its images, nor, while others
        run, for an offloaded file."""
        parent = request.parent
        if parent is not None and parent.finish_reason is None and parent.num_computed < parent.num_context_prompt:
            return False
        if request.images and not self._has_image_rows(request):
            return False
        if self.kv_cache.offload_store is None or request.sequence is None or not self.running:
            return True
        return self.kv_cache.offload_store.is_ready(request.sequence)

    def _has_image_rows(self, request: Request) -> bool:
        """Return whether the rows of all images are computed whose KV no cache holds. Enqueues the others."""
        assert self.image_encoder is not None
        encoder, salt = self.image_encoder, request.cache_salt
        if request.needed_images is None:
            if all(encoder.find(image, salt) for image in request.images):
                return True
            num_cached = self._count_cached(request)
            request.needed_images = [image for image in request.images if image.stop > num_cached]
            for image in request.needed_images:
                if not encoder.find(image, salt):
                    encoder.enqueue(image, request)
        return all(encoder.find(image, salt) for image in request.needed_images)

    def _count_cached(self, request: Request) -> int:
        """Return how many positions of a waiting request's context are cached: as `_attach_cached_prefix` will find
        them. Changes nothing."""
        if request.output != "tokens":
            return 0
        context_ids, adapter = request.context_ids, self.adapter_identities[request.adapter_id]
        sequence = request.sequence
        if sequence is None and request.parent is not None:
            sequence = request.parent.sequence
        page_hashes, num_held = PageHashes(request.cache_salt, adapter), 0
        if sequence is not None and sequence.page_hashes.adapter == adapter:
            page_hashes.root = sequence.page_hashes.root
            num_equal = min(sequence.match_length(context_ids), len(context_ids) - 1)
            num_held = self.kv_cache.usable_length(sequence, num_equal)
            if self.kv_cache.offload_store is not None and self.kv_cache.states is None:
                offloaded = self.kv_cache.offload_store.tokens_of(sequence)
                num_held = max(num_held, common_prefix_length(offloaded, context_ids[:-1]))
        elif sequence is not None:
            page_hashes = PageHashes(sequence.page_hashes.cache_salt, adapter)
        page_hashes.extend(context_ids)
        pages = self.kv_cache.find_prefix(page_hashes.hashes[: (len(context_ids) - 1) // PAGE])
        return max(num_held, len(pages) * PAGE)

    def _admit(self, request: Request, builder: StepBuilder) -> bool:
        """Let a waiting request run, if its context fits. Changes the cache and the queue."""
        if (
            (builder.copies or self.kv_cache.has_state_copies)
            and request.sequence is not None
            and self.kv_cache.is_offloaded(request.sequence)
        ):
            return False  # restoring writes at once, maybe to pages that the step copies
        sequence = request.sequence or self._new_sequence(request)
        self.kv_cache.acquire(sequence)
        num_cached = self._attach_cached_prefix(request, sequence)
        num_pages = count_pages(len(request.context_ids)) - count_pages(num_cached)
        num_states = self.kv_cache.num_missing_states(sequence)
        if self.running and not self.kv_cache.can_allocate(num_pages, num_states):
            self._release_sequence(request, sequence)
            return False
        self.kv_cache.truncate(sequence, num_cached)
        if self.kv_cache.offload_store is not None:
            self.kv_cache.restore(sequence, request.context_ids[:-1], builder.copies)
        if not request.start_time:
            request.start_time = perf_counter()
            if not sequence.is_private:
                self._record_cached_tokens(request, sequence.length)
            self.metrics.record_admission(request.start_time - request.arrival_time, request.cache_miss)
        request.sequence = sequence
        request.parent = None
        self.kv_cache.set_snapshot_positions(sequence, len(request.context_ids), request.page_hashes.hashes)
        self.waiting.remove(request)
        self.running[request.id] = request
        self.num_running_by_tenant[request.tenant] += 1
        self.num_running_hidden += request.output == "hidden"
        return True

    def _new_sequence(self, request: Request) -> KvSequence:
        """Return a sequence for a request: a fork of its parent's, if that has one; a private one for rows."""
        if request.output != "tokens":
            return self.kv_cache.new_sequence(adapter=self.adapter_identities[request.adapter_id], is_private=True)
        if request.parent is not None and request.parent.sequence is not None:
            return self.kv_cache.fork(request.parent.sequence)
        return self.kv_cache.new_sequence(request.cache_salt, self.adapter_identities[request.adapter_id])

    def _attach_cached_prefix(self, request: Request, sequence: KvSequence) -> int:
        """Return how many positions of the context a sequence holds. If the prefix cache has more, attach its pages.

        The last token is computed in any case, for its logits. A private sequence takes no pages of others.
        """
        if sequence.is_private:
            return sequence.length
        context_ids, page_hashes = request.context_ids, request.page_hashes
        self.kv_cache.set_adapter(sequence, self.adapter_identities[request.adapter_id])
        num_held = 0
        if sequence.tokens:
            num_equal = min(sequence.match_length(context_ids), len(context_ids) - 1)
            num_held = self.kv_cache.usable_length(sequence, num_equal)
        page_hashes.root, page_hashes.adapter = sequence.page_hashes.root, sequence.page_hashes.adapter
        page_hashes.extend(context_ids)
        pages = self.kv_cache.find_prefix(page_hashes.hashes[: (len(context_ids) - 1) // PAGE])
        if len(pages) * PAGE <= num_held:
            return num_held
        self.kv_cache.attach_prefix(sequence, pages, context_ids, page_hashes.hashes)
        return len(pages) * PAGE

    def _record_cached_tokens(self, request: Request, num_cached: int) -> None:
        """Note how much of a prompt was cached, and why not more. Changes the request and the counters."""
        prefix_cache = self.kv_cache.prefix_cache
        request.cached_tokens = num_cached
        prefix_cache.num_query_tokens += request.num_context_prompt
        prefix_cache.num_hit_tokens += num_cached
        if num_cached // PAGE < (request.num_context_prompt - 1) // PAGE:
            number = num_cached // PAGE
            page_tokens = request.context_ids[number * PAGE : (number + 1) * PAGE]
            request.cache_miss = self.kv_cache.explain_miss(request.page_hashes, number, page_tokens)

    def _preempt(self, request: Request) -> None:
        """Take the pages of a running request and put it back at the head of its queue. Changes the cache."""
        self.metrics.record_preemption()
        assert request.sequence is not None
        self.kv_cache.truncate(request.sequence, 0)
        self._remove_running(request)
        self._release_sequence(request, request.sequence)
        request.needed_images = None
        self.waiting.put_back(request)

    def _load(self) -> Load:
        """Return how busy the scheduler is. Any thread may call this: the requests are copied first."""
        running = list(self.running.values())
        prefix_cache = self.kv_cache.prefix_cache
        sequences = [sequence for request in running if (sequence := request.sequence) is not None]
        used_pages = {page for sequence in sequences for page in list(sequence.pages)}
        num_waiting = sum(map(len, list(self.waiting.queues.values())))
        load = Load(
            len(running),
            num_waiting,
            self.limits.num_pages,
            len(used_pages),
            self.limits.num_pages - self.kv_cache.pages.num_free,
            prefix_cache.num_query_tokens,
            prefix_cache.num_hit_tokens,
        )
        states = self.kv_cache.states
        if states is None:
            return load
        num_cached, num_uncached = len(states.cached), len(states.uncached)
        num_held = states.num_slots - num_cached - num_uncached
        return load._replace(held_states=num_held, cached_states=num_cached, free_states=num_uncached)

    def _remove_running(self, request: Request) -> None:
        del self.running[request.id]
        self.num_running_hidden -= request.output == "hidden"
        self.num_running_by_tenant[request.tenant] -= 1
        if not self.num_running_by_tenant[request.tenant]:
            del self.num_running_by_tenant[request.tenant]

    def _release_sequence(self, request: Request, sequence: KvSequence) -> None:
        """Drop a request's sequence if it is temporary, else make it idle. Changes the cache."""
        self.kv_cache.release(sequence)
        if request.is_temporary:
            self.kv_cache.drop(sequence)
            request.sequence = None


def explain_nan(adapter_name: str | None) -> str:
    """Return the probable cause of NaN logits, and a remedy."""
    if adapter_name is None:
        return "the weights or the cache hold NaN or infinite values; check the model file"
    return (
        f"values of the adapter {adapter_name!r} are NaN or too large: try without it, or load it with a smaller scale"
    )
