"""Counters, gauges and histograms of an engine, under the names that vLLM's dashboards know.

Plain numbers, added up step by step: a server turns `snapshot()` into its own format. Metrics that vLLM does not have
begin with `sporelm:`. `docs/observability.md` lists all of them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sporelm.engine.request import Request

# The bounds of vLLM's histograms (vllm/v1/metrics/loggers.py), so that quantiles of both can be compared. Between
# tokens we begin at 1 ms where vLLM begins at 10 ms: small models are faster than that.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
WHOLE_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = tuple(map(float, (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)))

ENDS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # vLLM's finish reasons
STEP_PHASES = ("schedule", "run", "sample", "commit")


class Load(NamedTuple):
    """The current load of an engine."""

    running: int
    waiting: int
    pages: int
    used_pages: int  # held by running requests
    held_pages: int  # held by any sequence
    prefix_queries: int  # tokens of prompts
    prefix_hits: int
    held_states: int = 0  # recurrent states of sequences
    cached_states: int = 0  # snapshots without a holder
    free_states: int = 0


class Histogram:
    """Counts of values between bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds  # a value belongs to the first one that is not below it
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def sample(self) -> dict[str, Any]:
        """Return it as Prometheus does: [[upper bound, values up to it], ...], the last bound infinite."""
        below, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            buckets.append([bound, below])
        return {"labels": {}, "buckets": buckets, "count": below, "sum": self.total}


class Metrics:
    """The metrics of one engine. Its steps change them; any thread may read them without waiting for a step."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load
        self._lock = Lock()  # held for some microseconds at most, so that a snapshot is consistent
        self.ended_by: Counter[str] = Counter()  # requests, by finish reason
        self.missed_by: Counter[str] = Counter()  # prefixes that were not found, by kind of reason
        self.step_seconds = [0.0] * len(STEP_PHASES)  # seconds of steps
        self.prompt_tokens = self.generation_tokens = self.preemptions = 0
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self.accepted_per_position: list[int] = []  # draft tokens, by their place in the draft
        self.first_token = Histogram(FIRST_TOKEN)
        self.between_tokens = Histogram(BETWEEN_TOKENS)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.queued, self.prefill, self.decode, self.whole = (Histogram(WHOLE_REQUEST) for _ in range(4))

    # ---- called by the engine; times are of perf_counter

    def record_admission(self, queued_seconds: float, cache_miss: str | None) -> None:
        """Record that a request runs for the first time, and why its prompt was not cached in full."""
        with self._lock:
            self.queued.observe(queued_seconds)
            if cache_miss is not None:
                self.missed_by[classify_miss(cache_miss)] += 1

    def record_preemption(self) -> None:
        """Record that a running request was preempted."""
        with self._lock:
            self.preemptions += 1

    def record_first_token(self, request: "Request") -> None:
        """Record the first token of a request."""
        with self._lock:
            self.prompt_tokens += request.num_prompt
            self.first_token.observe(request.first_token_time - request.arrival_time)
            self.prefill.observe(request.first_token_time - request.start_time)

    def record_draft(self, num_draft_tokens: int, num_accepted: int) -> None:
        """Record that a draft was verified."""
        with self._lock:
            self.drafts += 1
            self.draft_tokens += num_draft_tokens
            self.accepted_tokens += num_accepted
            self.accepted_per_position += [0] * (num_draft_tokens - len(self.accepted_per_position))
            for position in range(num_accepted):
                self.accepted_per_position[position] += 1

    def record_commit(self, num_tokens: int, gaps: Sequence[float]) -> None:
        """Record the generated tokens of a step; `gaps`: the seconds since the last tokens of each request."""
        with self._lock:
            self.generation_tokens += num_tokens
            if len(set(gaps)) == 1:  # requests that run together have equal gaps
                self.between_tokens.observe(gaps[0], len(gaps))
            else:
                for gap in gaps:
                    self.between_tokens.observe(gap)

    def record_step(self, num_tokens: int, *moments: float) -> None:
        """Record the computed tokens of a step, and the moments between its phases."""
        with self._lock:
            self.step_tokens.observe(num_tokens)
            seconds = self.step_seconds
            for phase in range(len(seconds)):
                seconds[phase] += moments[phase + 1] - moments[phase]

    def record_end(self, request: "Request", reason: str, now: float) -> None:
        """Record the end of a request, cancelled ones included."""
        with self._lock:
            self.ended_by[ENDS[reason]] += 1
            self.whole.observe(now - request.arrival_time)
            self.prompt_tokens += request.num_delivered
            if request.first_token_time:
                self.decode.observe(request.last_token_time - request.first_token_time)

    def close(self) -> None:
        """Keep the last figures, and release the engine, which must be idle."""
        last = self._load()
        self._load = lambda: last

    # ---- read by others

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return all metrics as they are now: {name: {"type", "help", "samples"}}, a copy.

        A sample of a counter or a gauge is {"labels", "value"}, one of a histogram {"labels", "buckets", "count",
        "sum"}; see `Histogram.sample`.
        """
        load = self._load()
        with self._lock:
            return self._gauges(load) | self._counters(load) | self._histograms()

    def _gauges(self, load: Load) -> dict[str, dict[str, Any]]:
        usage = load.used_pages / load.pages
        return {
            "vllm:num_requests_running": single("gauge", "Requests that run.", load.running),
            "vllm:num_requests_waiting": single("gauge", "Requests and texts that wait for room.", load.waiting),
            "vllm:kv_cache_usage_perc": single("gauge", "Share of the KV pages that running requests hold.", usage),
            "sporelm:kv_pages_held": single("gauge", "KV pages that anything holds, idle or not.", load.held_pages),
            "sporelm:recurrent_states": several(
                "gauge",
                "Recurrent states: held by sequences, kept for texts that begin alike, free.",
                "use",
                {"held": load.held_states, "kept": load.cached_states, "free": load.free_states},
            ),
        }

    def _counters(self, load: Load) -> dict[str, dict[str, Any]]:
        drafts = "vllm:spec_decode_num_"
        positions = {str(place): count for place, count in enumerate(self.accepted_per_position)}
        parts = dict(zip(STEP_PHASES, self.step_seconds, strict=True))
        ends = {word: self.ended_by[word] for word in ENDS.values()}
        return {
            "vllm:prompt_tokens_total": single("counter", "Tokens of prompts.", self.prompt_tokens),
            "vllm:generation_tokens_total": single("counter", "Tokens that were generated.", self.generation_tokens),
            "vllm:prefix_cache_queries_total": single(
                "counter", "Tokens of prompts that were looked up.", load.prefix_queries
            ),
            "vllm:prefix_cache_hits_total": single(
                "counter", "Tokens of prompts that needed no computing.", load.prefix_hits
            ),
            "sporelm:prefix_cache_misses_total": several(
                "counter",
                "Prompts not found in full, by reason.",
                "reason",
                {kind: self.missed_by[kind] for kind in MISSES},
            ),
            "vllm:request_success_total": several(
                "counter", "Requests that ended, by reason.", "finished_reason", ends
            ),
            "vllm:num_preemptions_total": single(
                "counter", "Requests that lost their pages for a while.", self.preemptions
            ),
            f"{drafts}drafts_total": single("counter", "Drafts that were checked.", self.drafts),
            f"{drafts}draft_tokens_total": single("counter", "Draft tokens that were checked.", self.draft_tokens),
            f"{drafts}accepted_tokens_total": single(
                "counter", "Draft tokens that were accepted.", self.accepted_tokens
            ),
            f"{drafts}accepted_tokens_per_pos_total": several(
                "counter", "Draft tokens that were accepted, by their place in the draft.", "position", positions
            ),
            "sporelm:step_seconds_total": several("counter", "Time of steps, by what was done.", "part", parts),
        }

    def _histograms(self) -> dict[str, dict[str, Any]]:
        def of(histogram: Histogram, text: str) -> dict[str, Any]:
            return {"type": "histogram", "help": text, "samples": [histogram.sample()]}

        return {
            "vllm:time_to_first_token_seconds": of(self.first_token, "From arrival to the first token."),
            "vllm:inter_token_latency_seconds": of(self.between_tokens, "From one step's tokens to the next one's."),
            "vllm:e2e_request_latency_seconds": of(self.whole, "From arrival to the end."),
            "vllm:request_queue_time_seconds": of(self.queued, "From arrival to when it first ran."),
            "vllm:request_prefill_time_seconds": of(self.prefill, "From when it first ran to the first token."),
            "vllm:request_decode_time_seconds": of(self.decode, "From the first token to the last."),
            "vllm:iteration_tokens_total": of(self.step_tokens, "Tokens of a step."),
        }


MISSES = ("first_seen", "evicted", "differs", "new_salt", "no_state")


def classify_miss(reason: str) -> str:
    """Return the kind of a reason of `KvCache.explain_miss`."""
    if reason.startswith("differs"):
        return "differs"
    if reason.startswith("no state"):
        return "no_state"
    return {"evicted": "evicted", "first seen": "first_seen"}.get(reason, "new_salt")


def single(kind: str, text: str, value: float) -> dict[str, Any]:
    """Return a metric without labels."""
    return {"type": kind, "help": text, "samples": [{"labels": {}, "value": value}]}


def several(kind: str, text: str, label: str, values: Mapping[str, float]) -> dict[str, Any]:
    """Return a metric with a value for each label."""
    samples = [{"labels": {label: name}, "value": value} for name, value in values.items()]
    return {"type": kind, "help": text, "samples": samples}
