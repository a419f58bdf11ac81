"""Simulates one replica under load: the real scheduler, and steps that take the time a cost model gives them.

Nothing is computed. Queues, pages, prefix hits, preemption and the prefill budget are the engine's own; the clock is
the simulation's. Each answer has the length of its traced request.
"""

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sporelm.bench.scale.cost_model import CostModel, StepLoad
from sporelm.bench.scale.request_trace import TracedRequest
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.kv_cache import KvCache
from sporelm.engine.request import Request
from sporelm.engine.sampling import SamplerOutput
from sporelm.engine.scheduler import Scheduler
from sporelm.engine.step import Step
from sporelm.errors import QueueFull
from sporelm.ops.paged_attention import PAGE

TOKEN = 1  # of all answers
SHARED_TOKEN = 2  # of the beginning that prompts share
MAX_SIMULATED_PAGES = 1 << 17  # more are never used at once by max_batch requests, and take memory here


@dataclass
class SimulatedRequest:
    """A request's times, in seconds of the simulation; None before they are known."""

    traced: TracedRequest
    start_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    is_finished: bool = False
    is_refused: bool = False

    @property
    def time_to_first_token(self) -> float:
        """Seconds from its arrival; infinite without a token."""
        if self.first_token_seconds is None:
            return float("inf")
        return self.first_token_seconds - self.traced.arrival_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """The speed at which its answer came after the first token; None for a single token."""
        if self.traced.output_tokens < 2 or self.first_token_seconds is None or self.last_token_seconds is None:
            return None
        elapsed = self.last_token_seconds - self.first_token_seconds
        return (self.traced.output_tokens - 1) / elapsed if elapsed > 0 else None


@dataclass
class SimulationResult:
    """The times of all requests, and how busy the replica was; `part_seconds` sums `StepTime.parts` of all steps."""

    requests: list[SimulatedRequest]
    seconds: float = 0.0
    busy_seconds: float = 0.0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    max_running: int = 0
    max_waiting: int = 0
    max_page_share: float = 0.0
    num_page_stalls: int = 0  # steps in which a request waited for pages
    num_batch_stalls: int = 0  # steps in which a request waited because max_batch requests ran
    num_prefill_stalls: int = 0  # steps in which prompts waited because others decoded: the prefill budget was used
    part_seconds: Counter[str] = field(default_factory=Counter)
    inter_token_seconds: "array[float]" = field(default_factory=lambda: array("d"))  # of counted answers
    warmup_seconds: float = 0.0

    @property
    def counted(self) -> list[SimulatedRequest]:
        """The requests that arrived after the warm-up."""
        return [each for each in self.requests if each.traced.arrival_seconds >= self.warmup_seconds]

    @property
    def is_overloaded(self) -> bool:
        """Whether a request was refused, or did not finish before the simulation was ended."""
        return any(each.is_refused or not each.is_finished for each in self.requests)

    def first_token_percentile(self, percent: float) -> float:
        """Return a percentile of the time to the first token; infinite for requests without one."""
        return percentile([each.time_to_first_token for each in self.counted], percent)

    def itl_percentile(self, percent: float) -> float:
        """Return a percentile of the inter-token latency."""
        return percentile(self.inter_token_seconds, percent)

    def speed_percentile(self, percent: float) -> float:
        """Return a percentile of the users' tokens a second; the 1st is that of the slowest."""
        speeds = [speed for each in self.counted if each.is_finished and (speed := each.tokens_per_second) is not None]
        return percentile(speeds, percent)

    def queue_percentile(self, percent: float) -> float:
        """Return a percentile of the time that a request waits before its first step."""
        waits = [
            each.start_seconds - each.traced.arrival_seconds for each in self.counted if each.start_seconds is not None
        ]
        return percentile(waits, percent)

    def to_json(self) -> dict[str, Any]:
        """Return the figures of a table row."""
        total = sum(self.part_seconds.values()) or 1.0
        return {
            "requests": len(self.requests),
            "finished": sum(each.is_finished for each in self.requests),
            "ttft_s": {f"p{percent}": self.first_token_percentile(percent) for percent in (50, 90, 99)},
            "itl_s": {f"p{percent}": self.itl_percentile(percent) for percent in (50, 99)},
            "user_tok_s": {"p50": self.speed_percentile(50), "p1": self.speed_percentile(1)},
            "queue_s": {"p50": self.queue_percentile(50), "p99": self.queue_percentile(99)},
            "output_tok_s": self.num_output_tokens / self.seconds if self.seconds else 0.0,
            "prompt_tok_s": self.num_prompt_tokens / self.seconds if self.seconds else 0.0,
            "busy_share": self.busy_seconds / self.seconds if self.seconds else 0.0,
            "steps": self.num_steps,
            "mean_step_s": self.busy_seconds / self.num_steps if self.num_steps else 0.0,
            "max_running": self.max_running,
            "max_waiting": self.max_waiting,
            "max_page_share": self.max_page_share,
            "preemptions": self.num_preemptions,
            "page_stalls": self.num_page_stalls,
            "batch_stalls": self.num_batch_stalls,
            "prefill_stalls": self.num_prefill_stalls,
            "spent": {name: seconds / total for name, seconds in self.part_seconds.most_common()},
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; NaN of nothing. The nearest value is taken, so that it may be infinite."""
    if not len(values):
        return float("nan")
    return float(np.percentile(np.asarray(values), percent, method="nearest"))


def make_limits(
    model: CostModel,
    *,
    max_batch: int,
    token_budget: int,
    max_context: int,
    memory_share: float = 0.9,
    max_waiting: int = 1024,
    prefill_tokens: int | None = None,
) -> EngineConfig:
    """Return the limits of a replica's engine: as many pages as its memory holds. Raises RequestError if none fit."""
    needed = (max_batch + 3) * -(-max_context // PAGE)
    pages = min(model.num_pages(PAGE, memory_share), needed, MAX_SIMULATED_PAGES)
    return EngineConfig(
        max_context, max_context, model.model.vocab, token_budget, max_batch, pages, max_waiting, prefill_tokens
    )


class Simulation:
    """One replica. `run` once."""

    def __init__(self, model: CostModel, limits: EngineConfig) -> None:
        self.model, self.limits = model, limits
        self.kv_cache = KvCache(limits.num_pages)
        self.scheduler = Scheduler(limits, self.kv_cache)
        self.clock = 0.0
        self._simulated: dict[int, SimulatedRequest] = {}  # by request id
        self._random = np.random.default_rng(7)

    def run(
        self, requests: Sequence[TracedRequest], *, warmup_seconds: float = 0.0, max_seconds: float = float("inf")
    ) -> SimulationResult:
        """Serve the requests. Percentiles leave out the arrivals of the warm-up.

        The simulation ends at `max_seconds`, even if requests remain: the replica is then overloaded.
        """
        result = SimulationResult([SimulatedRequest(each) for each in sorted(requests)], warmup_seconds=warmup_seconds)
        pending = deque(result.requests)
        while (pending or not self.scheduler.is_idle) and self.clock < max_seconds:
            if self.scheduler.is_idle and pending:
                self.clock = max(self.clock, pending[0].traced.arrival_seconds)
            while pending and pending[0].traced.arrival_seconds <= self.clock:
                self._add(pending.popleft())
            if not self.scheduler.is_idle:
                self._step(result)
        result.seconds = self.clock
        result.num_preemptions = self.scheduler.metrics.preemptions
        return result

    def _add(self, simulated: SimulatedRequest) -> None:
        """Queue a request, whose prompt is random behind what all prompts share."""
        traced = simulated.traced
        shared = min(traced.shared_tokens, traced.prompt_tokens)
        own = self._random.integers(3, self.limits.vocab, traced.prompt_tokens - shared).tolist()
        request = Request([SHARED_TOKEN] * shared + own, max_tokens=traced.output_tokens)
        request.id = len(self._simulated) + 1
        self._simulated[request.id] = simulated
        try:
            self.scheduler.add(request)
        except QueueFull:
            simulated.is_refused = True

    def _step(self, result: SimulationResult) -> None:
        """Schedule a step, let its time pass, and commit it."""
        scheduler = self.scheduler
        step = scheduler.next_step()
        time = self.model.step(StepLoad.from_step(step))
        for scheduled in step.sequences:
            simulated = self._simulated[scheduled.request_id]
            if simulated.start_seconds is None:
                simulated.start_seconds = self.clock
        self._note_load(step, result)
        self.clock += time.seconds
        num_outputs = [scheduled.num_outputs for scheduled in step.sequences]
        tokens = [[TOKEN] for count in num_outputs if count]
        self._observe(step, time.seconds)
        outputs = scheduler.commit(step, SamplerOutput(tokens, {}, {}, set(), {}))
        for output in outputs:
            self._note_token(output.request.id, output.finish_reason is not None, result)
        result.num_steps += 1
        result.busy_seconds += time.seconds
        result.num_output_tokens += len(outputs)
        result.num_prompt_tokens += step.num_tokens - sum(len(each.tokens) == 1 for each in step.sequences)
        result.part_seconds.update(time.parts)

    def _observe(self, step: Step, seconds: float) -> None:
        """Tell the prefill budget how long the step took, as `Engine.observe_time` does."""
        counts = [len(each.tokens) for each in step.sequences if each.num_outputs == len(each.tokens)]
        num_decoding = sum(counts)
        self.scheduler.prefill_budget.observe(num_decoding, step.num_tokens - num_decoding, seconds)

    def _note_load(self, step: Step, result: SimulationResult) -> None:
        """Note how full the queue and the pages are."""
        scheduler = self.scheduler
        num_running, num_waiting = len(scheduler.running), len(scheduler.waiting)
        result.max_running = max(result.max_running, num_running)
        result.max_waiting = max(result.max_waiting, num_waiting)
        used = self.limits.num_pages - self.kv_cache.pages.num_free
        result.max_page_share = max(result.max_page_share, used / self.limits.num_pages)
        has_room = step.num_tokens < scheduler.token_budget
        if num_waiting and num_running >= self.limits.max_batch:
            result.num_batch_stalls += 1
        elif num_waiting and has_room and self._lacks_pages():
            result.num_page_stalls += 1
        elif has_room and (num_waiting or any(not each.num_outputs for each in step.sequences)):
            result.num_prefill_stalls += 1

    def _lacks_pages(self) -> bool:
        """Return whether the first waiting request has too few free pages."""
        first = next(iter(self.scheduler.waiting))
        return not self.kv_cache.can_allocate(-(-len(first.context_ids) // PAGE), 0)

    def _note_token(self, request_id: int, is_last: bool, result: SimulationResult) -> None:
        simulated = self._simulated[request_id]
        if simulated.last_token_seconds is None:
            simulated.first_token_seconds = self.clock
        elif simulated.traced.arrival_seconds >= result.warmup_seconds:
            result.inter_token_seconds.append(self.clock - simulated.last_token_seconds)
        simulated.last_token_seconds = self.clock
        simulated.is_finished = is_last
