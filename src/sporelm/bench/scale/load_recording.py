"""Serves timed requests on a real engine, as they arrive, and notes when their tokens came."""

from collections import deque
from collections.abc import Sequence
from time import perf_counter, sleep

from sporelm.api.engine_timing import random_ids
from sporelm.bench.scale.request_trace import RequestTimes, TracedRequest
from sporelm.engine import Engine, Request

MAX_PAUSE_SECONDS = 0.002


def record_load(engine: Engine, requests: Sequence[TracedRequest]) -> list[RequestTimes]:
    """Return the times of all requests, each added at its arrival. Prompts are random ids; answers have full length."""
    pending = deque(
        (traced, Request(random_ids(engine, traced.prompt_tokens), max_tokens=traced.output_tokens))
        for traced in sorted(requests)
    )
    added: list[tuple[TracedRequest, Request]] = []
    start = perf_counter()
    while pending or not engine.is_idle:
        elapsed = perf_counter() - start
        while pending and pending[0][0].arrival_seconds <= elapsed:
            traced, request = pending.popleft()
            engine.add(request)
            added.append((traced, request))
        if engine.is_idle:
            sleep(min(MAX_PAUSE_SECONDS, max(0.0, pending[0][0].arrival_seconds - elapsed)))
        else:
            engine.step()
    times = []
    for traced, request in added:
        arrival = start + traced.arrival_seconds
        times.append(RequestTimes(traced, request.first_token_time - arrival, request.last_token_time - arrival))
    return times
