"""Prompts for which the output rows of all positions are wanted: scoring and embeddings of a generating model.

They are computed in steps of their own, between those of requests. Such a prompt has its place among requests by its
arrival. It starts when its pages can be allocated beside those of the prompts that have started, and waits until then,
as a request does; later arrivals do not pass it. Between two steps its sequence is idle. If running requests need its
pages, it waits again, and recomputes them; until that is done no later arrival starts. So each prompt finishes, however
many there are.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.kv.kv_cache import KvCache
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.request import Request
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import MemoryShortage

if TYPE_CHECKING:
    from sporelm.engine.engine import Engine

Rows = NDArray[np.float32]
RowsCallback = Callable[[Rows], object]


@dataclass(eq=False)
class PromptRowsRequest:
    """One prompt. `compute` returns a step's rows, `on_rows` is called with the new ones."""

    after_id: int  # the number of the last request that came before it
    token_ids: Sequence[int]
    adapter_id: int
    sequence: KvSequence
    compute: Callable[[Step], Rows]
    on_rows: RowsCallback
    is_started: bool = False  # whether it has room
    was_evicted: bool = False  # whether others have taken its room since it started
    num_computed: int = 0  # positions that were held after its last step
    num_delivered: int = 0  # rows with which `on_rows` was called
    error: Exception | None = None  # of a step that another caller ran

    @property
    def num_pages(self) -> int:
        return count_pages(len(self.token_ids))

    @property
    def is_done(self) -> bool:
        return self.num_delivered == len(self.token_ids)


class PromptRowsQueue:
    """All prompts that have started or wait, in the order of their arrival."""

    def __init__(self) -> None:
        self.blocked_request: Request | None = None  # the request that found no room when it was last considered
        self._prompts: dict[int, PromptRowsRequest] = {}  # by sequence id

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[PromptRowsRequest]:
        return iter(list(self._prompts.values()))

    @property
    def started(self) -> list[PromptRowsRequest]:
        return [prompt for prompt in self._prompts.values() if prompt.is_started]

    @property
    def has_waiting(self) -> bool:
        return any(not prompt.is_started for prompt in self._prompts.values())

    @property
    def num_pages(self) -> int:
        """Pages that the started prompts hold or will hold."""
        return sum(prompt.num_pages for prompt in self.started)

    def add(self, prompt: PromptRowsRequest) -> None:
        """Queue a prompt. Changes the queue."""
        self._prompts[prompt.sequence.id] = prompt

    def remove(self, prompt: PromptRowsRequest) -> None:
        """Remove a prompt, if it is queued. Changes the queue."""
        self._prompts.pop(prompt.sequence.id, None)

    def must_wait(self, request: Request) -> bool:
        """Return whether a request must let an earlier prompt pass. Changes nothing."""
        if request.priority < 0:
            return False
        return any(
            prompt.after_id < request.id and (prompt.was_evicted or not prompt.is_started)
            for prompt in self._prompts.values()
        )

    def try_start(self, prompt: PromptRowsRequest, kv_cache: KvCache, *, is_idle: bool) -> bool:
        """Return whether a prompt may be computed now; it waits if others have taken its pages. Changes the prompt.

        `is_idle`: no request runs.
        """
        if prompt.is_started and prompt.sequence.length < prompt.num_computed:
            prompt.is_started = False
            prompt.was_evicted = True
        if prompt.is_started or any(not each.is_started for each in self._before(prompt)) or self._is_late(prompt):
            return prompt.is_started
        started = self.started
        num_pages = prompt.num_pages + sum(each.num_pages for each in started)
        prompt.is_started = (is_idle and not started) or kv_cache.can_allocate(num_pages, len(started) + 1)
        return prompt.is_started

    def _before(self, prompt: PromptRowsRequest) -> Iterator[PromptRowsRequest]:
        for each in self._prompts.values():
            if each is prompt:
                return
            yield each

    def _is_late(self, prompt: PromptRowsRequest) -> bool:
        """Return whether a request without room came before this prompt, or is more urgent."""
        blocked = self.blocked_request
        if blocked is None or blocked.finish_reason is not None:
            return False
        return (blocked.priority, blocked.id) <= (0, prompt.after_id)


class PromptRowsRunner:
    """Runs the steps of an engine's prompts of all rows."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine

    def stream_rows(
        self, tokens: Sequence[int], compute: Callable[[Step], Rows], on_rows: RowsCallback, adapter_id: int
    ) -> Generator[bool, None, None]:
        """Compute one row for every position of a prompt; see `Engine.logits`."""
        engine = self.engine
        kv_cache = engine.kv_cache
        with engine.lock:
            engine.check_open()
            request = Request(tokens, max_tokens=1, adapter_id=adapter_id)
            engine.scheduler.check(request, rolls=False)
            adapter = engine.scheduler.adapter_identities[adapter_id]
            sequence = kv_cache.new_sequence(adapter=adapter, is_private=True)
            prompt = PromptRowsRequest(
                engine.last_request_id, request.context_ids, adapter_id, sequence, compute, on_rows
            )
            engine.scheduler.prompt_rows.add(prompt)
        try:
            while True:
                with engine.lock:
                    engine.check_open()
                    if prompt.error is not None:
                        raise prompt.error
                    if not prompt.is_done:
                        self._advance(prompt)
                if prompt.is_done:
                    return
                yield prompt.is_started
        finally:
            with engine.lock:
                self.end(prompt)

    def step(self) -> None:
        """Run one step of the first prompt that need not wait, if there is one. Call it with the engine's lock.

        Requests wait for these prompts, whose own callers may be gone or busy. An error is raised to the prompt's own
        caller.
        """
        for prompt in self.engine.scheduler.prompt_rows:
            has_advanced = False
            try:
                has_advanced = self._advance(prompt)
            except Exception as error:
                prompt.error = error
            if prompt.is_done or prompt.error is not None:
                self.end(prompt)
                return
            if has_advanced:
                return

    def end(self, prompt: PromptRowsRequest) -> None:
        """Forget a prompt and what was computed for it. Does nothing the second time."""
        kv_cache = self.engine.kv_cache
        self.engine.scheduler.prompt_rows.remove(prompt)
        kv_cache.invalidate(prompt.sequence)
        kv_cache.drop(prompt.sequence)

    def _advance(self, prompt: PromptRowsRequest) -> bool:
        """Run the next step of a prompt; False if it must wait."""
        engine = self.engine
        queue = engine.scheduler.prompt_rows
        if not queue.try_start(prompt, engine.kv_cache, is_idle=not engine.scheduler.running):
            return False
        start, rows = self._run_chunk(prompt)
        prompt.num_computed = prompt.sequence.length
        if prompt.num_computed > prompt.num_delivered:
            prompt.on_rows(rows[max(0, prompt.num_delivered - start) :])
            prompt.num_delivered = prompt.num_computed
        return True

    def _run_chunk(self, prompt: PromptRowsRequest) -> tuple[int, Rows]:
        """Run a step of this prompt only, short if requests decode; return its first position and its rows.

        If running requests leave no pages, the prompt waits again.
        """
        engine = self.engine
        sequence = prompt.sequence
        kv_cache = engine.kv_cache
        running = engine.scheduler.running
        kv_cache.acquire(sequence)
        try:
            kv_cache.restore(sequence, prompt.token_ids, [])
            start = sequence.length
            budget = engine.limits.token_budget
            if num_decoding := sum(request.is_decoding for request in running.values()):
                budget = min(budget, engine.scheduler.prefill_budget.num_allowed(num_decoding))
            ids = prompt.token_ids[start : start + budget]
            copies: list[tuple[int, int]] = []
            if not kv_cache.reserve(sequence, start + len(ids), copies):
                if not running:
                    shortage = kv_cache.describe_shortage(sequence, start + len(ids))
                    raise MemoryShortage(f"{shortage} are in use: ask again later")
                prompt.is_started = False
                prompt.was_evicted = True
                return start, np.zeros((0, 0), np.float32)
            scheduled = ScheduledSequence(
                0, ids, start, sequence.page_table, len(ids), prompt.adapter_id, sequence.state_slot
            )
            step = Step([scheduled], copies, kv_cache.pop_state_copies())
            start_time = perf_counter()
            rows = prompt.compute(step)
            if engine.observer is not None:
                engine.observer.on_step(step, (start_time, start_time, *[perf_counter()] * 3))
            kv_cache.extend(sequence, ids)
        except BaseException:  # it is unknown how much the step has changed: a state may be ahead of the tokens
            kv_cache.invalidate(sequence)
            raise
        finally:
            kv_cache.release(sequence)
        return start, rows
