"""Serves timed requests on a real engine, as they arrive, and notes when their tokens came."""

from collections import deque
from collections.abc import Sequence
from time import perf_counter

from sporelm.api.engine_timing import random_ids
from sporelm.bench.scale.request_trace import RequestTimes, TracedRequest
from sporelm.bench.scale.step_measurement import Clock
from sporelm.engine import Engine, Request
from sporelm.engine.prefill_budget import PrefillBudget


class ClockedPrefillBudget(PrefillBudget):
    """A prefill budget that takes the time of steps from a clock, as the recorded times."""

    def __init__(self, fixed: int | None, clock: Clock) -> None:
        super().__init__(fixed)
        self.clock = clock
        self.step_start = 0.0  # of the clock

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """Note a step that began at `step_start` and ends now; `seconds` is that of another clock."""
        super().observe(num_decoding, num_prompt_tokens, self.clock() - self.step_start)


def record_load(engine: Engine, requests: Sequence[TracedRequest], clock: Clock = perf_counter) -> list[RequestTimes]:
    """Return the times of all requests, each added at its arrival. Prompts are random ids; answers have full length.

    Time without work is skipped. `clock` gives the recorded times: `thread_time` for a back-end with one thread. The
    prefill budget learns from the same clock. Changes the engine's.
    """
    budget = ClockedPrefillBudget(engine.limits.prefill_tokens, clock)
    engine.scheduler.prefill_budget = budget
    pending = deque(
        (traced, Request(random_ids(engine, traced.prompt_tokens), max_tokens=traced.output_tokens))
        for traced in sorted(requests)
    )
    added: dict[int, TracedRequest] = {}
    tokens: dict[int, list[float]] = {}  # of each request, the moments of its tokens
    start = clock()
    while pending or not engine.is_idle:
        elapsed = clock() - start
        if engine.is_idle and pending[0][0].arrival_seconds > elapsed:
            start -= pending[0][0].arrival_seconds - elapsed
            elapsed = pending[0][0].arrival_seconds
        while pending and pending[0][0].arrival_seconds <= elapsed:
            traced, request = pending.popleft()
            engine.add(request)
            added[request.id], tokens[request.id] = traced, []
        budget.step_start = clock()
        outputs = engine.step()
        now = clock() - start
        for output in outputs:
            tokens[output.request.id].append(now)
    times = []
    for request_id, traced in added.items():
        arrival, moments = traced.arrival_seconds, tokens[request_id]
        times.append(RequestTimes(traced, moments[0] - arrival, moments[-1] - arrival))
    return times
