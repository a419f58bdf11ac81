"""How many machines a number of users needs: the load that one replica bears, and the limit that it meets first."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from sporelm.bench.scale.request_trace import RequestMix
from sporelm.bench.scale.simulation import Simulation, SimulationResult

HOURS_PER_MONTH = 730
STALL_SHARE = 0.1  # of the steps, from which a shortage counts as the cause
PRECISION = 1.08  # between the largest rate that meets the objective and the smallest that does not
MAX_DOUBLINGS = 12
MAX_HALVINGS = 5
OVERTIME = 1.5  # of the arrivals' duration: requests that take longer count as unfinished

NAMES_OF_PARTS = {
    "products": "multiplying with the weights",
    "weights": "reading the weights",
    "attention": "multiplying in attention",
    "kv": "reading keys and values",
    "rows": "rows between products",
    "launches": "launches of ops",
    "links": "links between ranks",
    "bubble": "bubbles of the pipeline",
    "engine": "the engine's own work",
}


@dataclass(frozen=True)
class ServiceObjective:
    """The service that users must get: a bound on the 99th percentile of the first token, and on the slowest 1 %."""

    max_first_token_seconds: float = 10.0
    min_tokens_per_second: float = 5.0

    def violations(self, result: SimulationResult) -> list[str]:
        """Return the bounds that a simulation does not keep: "queue", "first token", "speed"."""
        violated = []
        if result.is_overloaded:
            violated.append("queue")
        if result.first_token_percentile(99) > self.max_first_token_seconds:
            violated.append("first token")
        if not result.speed_percentile(1) >= self.min_tokens_per_second:
            violated.append("speed")
        return violated


@dataclass(frozen=True)
class ReplicaCapacity:
    """The largest rate that meets the objective, with its simulation, and the simulation of the first that does not.

    `result` is None if no rate does: a single user is not served well enough.
    """

    requests_per_second: float
    result: SimulationResult | None
    beyond: SimulationResult
    limit: str


@dataclass(frozen=True)
class FleetPlan:
    """The machines for all users."""

    users: int
    interval_seconds: float  # between two requests of a user
    machines_per_replica: float  # less than 1 if a machine holds several
    dollars_per_hour: float  # a machine
    capacity: ReplicaCapacity

    @property
    def num_replicas(self) -> int | None:
        """The replicas; None if none is good enough."""
        rate = self.capacity.requests_per_second
        return ceil(self.users / self.interval_seconds / rate) if rate else None

    @property
    def num_machines(self) -> int | None:
        return None if self.num_replicas is None else ceil(self.num_replicas * self.machines_per_replica)

    @property
    def dollars_per_month(self) -> float | None:
        return None if self.num_machines is None else self.num_machines * self.dollars_per_hour * HOURS_PER_MONTH

    def to_json(self) -> dict[str, Any]:
        """Return the figures of a table row."""
        capacity = self.capacity
        return {
            "users": self.users,
            "interval_s": self.interval_seconds,
            "replica_requests_s": capacity.requests_per_second,
            "replica_users": capacity.requests_per_second * self.interval_seconds,
            "replicas": self.num_replicas,
            "machines": self.num_machines,
            "dollars_per_month": self.dollars_per_month,
            "limit": capacity.limit,
            "at_capacity": capacity.result.to_json() if capacity.result else None,
            "beyond": capacity.beyond.to_json(),
        }


def find_capacity(
    make_simulation: Callable[[], Simulation],
    mix: RequestMix,
    objective: ServiceObjective,
    *,
    seconds: float,
    warmup_seconds: float,
    start_rate: float = 0.05,
    seed: int = 0,
    announce: Callable[[str], None] = lambda line: None,
) -> ReplicaCapacity:
    """Search the largest rate of requests at which one replica meets the objective.

    Arrivals last `seconds`, or as long as 40 requests take to arrive. The first rate is doubled until it is too much,
    or halved until it is not; then the interval is cut in two.
    """

    def simulate(rate: float) -> tuple[SimulationResult, list[str]]:
        duration = max(seconds, 40 / rate)
        warmup = warmup_seconds * duration / seconds
        requests = mix.draw(rate, duration, seed)
        result = make_simulation().run(requests, warmup_seconds=warmup, max_seconds=OVERTIME * duration)
        violated = objective.violations(result)
        announce(
            f"{rate:.3f} requests/s: TTFT p99 {result.first_token_percentile(99):.2f} s, slowest 1 % "
            f"{result.speed_percentile(1):.1f} tok/s: {', '.join(violated) or 'good'}"
        )
        return result, violated

    rate, good, bad = start_rate, None, None
    good_rate = bad_rate = 0.0
    for _ in range(MAX_DOUBLINGS):
        result, violated = simulate(rate)
        if violated:
            bad, bad_rate, reasons = result, rate, violated
            rate /= 2
            if rate < start_rate / 2**MAX_HALVINGS:
                break
        else:
            good, good_rate = result, rate
            rate *= 2
        if good is not None and bad is not None:
            break
    if bad is None:
        return ReplicaCapacity(good_rate, good, good, "none up to this rate")  # type: ignore[arg-type]
    while good is not None and bad_rate / good_rate > PRECISION:
        rate = (good_rate * bad_rate) ** 0.5
        result, violated = simulate(rate)
        if violated:
            bad, bad_rate, reasons = result, rate, violated
        else:
            good, good_rate = result, rate
    return ReplicaCapacity(good_rate, good, bad, explain_limit(bad, reasons))


def explain_limit(result: SimulationResult, violated: list[str]) -> str:
    """Return what a simulation that violates an objective lacks first."""
    steps = max(1, result.num_steps)
    bound = violated[0] if violated else "nothing"
    symptom = {"queue": "the queue grows", "first token": "first tokens are late", "speed": "answers are slow"}.get(
        bound, "nothing is violated"
    )
    if result.num_page_stalls / steps > STALL_SHARE:
        return f"{symptom}: KV memory is full"
    if result.num_batch_stalls / steps > STALL_SHARE:
        return f"{symptom}: max_batch requests run already"
    total = sum(result.part_seconds.values()) or 1.0
    name, seconds = result.part_seconds.most_common(1)[0] if result.part_seconds else ("engine", 0.0)
    cause = f"{seconds / total:.0%} of a step is {NAMES_OF_PARTS.get(name, name)}"
    if result.num_prefill_stalls / steps > STALL_SHARE and bound != "speed":
        cause = f"prompts wait for the prefill budget, and {cause}"
    return f"{symptom}: {cause}"
