"""A measurement: its plan, its run and its report."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sporelm.bench.serving.http_connection import BenchClient
from sporelm.bench.serving.load_generator import LoadRun, OfferedLoad, run_load, run_until_stopped
from sporelm.bench.serving.server_probe import PATHS, Endpoint, RequestDialect, ServerProbe
from sporelm.bench.serving.server_target import ServerTarget
from sporelm.bench.serving.serving_rows import ServingRow
from sporelm.errors import UsageError

MAX_USERS = 4096
MAX_RATE = 10_000.0  # requests a second
MIN_TOKEN_SHARE = 0.95  # of the tokens that were asked for, below which a note says so

Announce = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True)
class ServingPlan:
    """The plan of a measurement. Raises UsageError for values that cannot be measured.

    loads          each is run `repeat` times, in turns
    requests       of each run; None: some for each user, or about ten seconds of a rate
    warmup         requests before each run that do not count
    prompt_tokens  of a prompt, about
    new_tokens     of an answer
    shared         share of a prompt that is the same in all, 0 to 1
    seed           of the prompts and the moments of arrival
    timeout        seconds of a request
    """

    target: ServerTarget
    loads: tuple[OfferedLoad, ...]
    model: str = ""
    endpoint: Endpoint = "chat"
    prompt_tokens: int = 128
    new_tokens: int = 64
    requests: int | None = None
    warmup: int = 1
    repeat: int = 1
    shared: float = 0.0
    seed: int = 0
    temperature: float = 0.0
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("-p", self.prompt_tokens, 1), ("-n", self.new_tokens, 1), ("--repeat", self.repeat, 1),
            ("--warmup", self.warmup, 0), ("--requests", self.requests, 1), ("--seed", self.seed, 0),
        ):  # fmt: skip
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}: it must be at least {least}")
        if not 0 <= self.shared <= 1:
            raise UsageError(f"--shared-prefix is {self.shared:g}: it is a share, from 0 to 1")
        if not 0 < self.timeout <= 86_400:
            raise UsageError(f"--timeout is {self.timeout:g}: it must be above 0 and at most 86400 seconds")
        if not 0 <= self.temperature <= 100:
            raise UsageError(f"--temp is {self.temperature:g}: it must be from 0 to 100")
        for load in self.loads:
            if load.rate is not None and not 0 < load.rate <= MAX_RATE:
                raise UsageError(f"--rate is {load.rate:g}: it must be above 0 and at most {MAX_RATE:g}")
            if load.rate is None and not 1 <= load.users <= MAX_USERS:
                raise UsageError(f"-c is {load.users}: it must be from 1 to {MAX_USERS}")
            if self.requests is not None and load.users > self.requests:
                raise UsageError(
                    f"--requests {self.requests} cannot keep -c {load.users} busy: give at least {load.users}"
                )


@dataclass
class ServingReport:
    """The result: rows of the loads that were started, the request fields in use, and notes for the reader."""

    plan: ServingPlan
    dialect: RequestDialect
    notes: list[str]
    rows: list[ServingRow] = field(default_factory=list)
    stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        """One object; without the key."""
        asked = {key: value for key, value in asdict(self.plan).items() if key not in ("target", "loads")}
        asked |= {"url": self.plan.target.url, "model": self.dialect.model, "ignore_eos": self.dialect.ignore_eos}
        rows = [row.as_json() for row in self.rows]
        return {**asked, "notes": self.notes, "stopped": self.stopped, "rows": rows}

    @property
    def title(self) -> str:
        """The measurement in one line."""
        plan = self.plan
        length = self.dialect.prompt_tokens or self.plan.prompt_tokens
        asked = f"{plan.endpoint}, about {length} tokens in, {plan.new_tokens} out"
        return f"{self.dialect.model} at {plan.target.url}: {asked}"


def measure_server(
    plan: ServingPlan,
    announce: Announce = lambda phase, done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ServingReport:
    """Run all loads of a plan. When `stopped` says so, the report has what was measured until then.

    Raises RequestError where the server cannot be reached, or refuses what is asked of it at the beginning; what fails
    later is counted.
    """
    return asyncio.run(_measure_server(plan, announce, stopped))


async def _measure_server(plan: ServingPlan, announce: Announce, stopped: Callable[[], bool]) -> ServingReport:
    client = BenchClient(plan.target)
    try:
        wanted = RequestDialect(plan.model, plan.endpoint, plan.new_tokens, plan.temperature, words=plan.prompt_tokens)
        probe = ServerProbe(plan.target, client, plan.timeout)
        learning = asyncio.ensure_future(probe.learn(wanted, plan.prompt_tokens, plan.seed))
        if not await run_until_stopped(learning, stopped):
            raise KeyboardInterrupt  # nothing was measured yet
        report = ServingReport(plan, learning.result(), probe.notes)
        await ServingMeasurement(plan, client, report, announce, stopped).all()
        return report
    finally:
        client.close()


class ServingMeasurement:
    """Runs the loads in turns, so that a slow minute affects all of them."""

    def __init__(
        self,
        plan: ServingPlan,
        client: BenchClient,
        report: ServingReport,
        announce: Announce,
        stopped: Callable[[], bool],
    ) -> None:
        self.plan = plan
        self.client = client
        self.report = report
        self.announce = announce
        self.stopped = stopped
        self.counts = {load: load.requests(plan.requests) for load in plan.loads}
        self.num_made = 0  # prompts: each request has one of its own
        self.num_done = 0
        self.prompts = report.dialect.prompts(plan.seed, plan.shared)

    async def all(self) -> None:
        """Fill the report."""
        runs: dict[OfferedLoad, list[LoadRun]] = {load: [] for load in self.plan.loads}
        for turn in range(self.plan.repeat):
            for load in self.plan.loads:
                if self.stopped():
                    break
                await self._warm(load)
                made = await self._run(load, self._bodies(self.counts[load]), turn)
                if made.outcomes:
                    runs[load].append(made)
        self.report.stopped = self.stopped()
        self.report.rows = [ServingRow(load, tuple(found)) for load, found in runs.items() if found]
        self._note()

    async def _warm(self, load: OfferedLoad) -> None:
        """Send warm-up requests, as many at a time as users. Failures are counted in the measured requests only."""
        if self.plan.warmup:
            users = OfferedLoad(min(load.users or self.plan.warmup, MAX_USERS))
            bodies = self._bodies(self.plan.warmup)
            await run_load(self.client, users, bodies, "", self.plan.timeout, lambda: None, self.stopped)

    async def _run(self, load: OfferedLoad, bodies: list[bytes], turn: int) -> LoadRun:
        total = self.plan.repeat * sum(self.counts.values())

        def tick() -> None:
            self.num_done += 1
            self.announce(f"measuring {load.name}", self.num_done, total)

        self.announce(f"measuring {load.name}", self.num_done, total)
        seed = f"{self.plan.seed} {load.name} {turn}"
        return await run_load(self.client, load, bodies, seed, self.plan.timeout, tick, self.stopped)

    def _bodies(self, count: int) -> list[bytes]:
        """Requests with prompts that no other has; made before the clock starts."""
        dialect = self.report.dialect
        target = self.plan.target
        path = PATHS[dialect.endpoint]
        first = self.num_made
        self.num_made += count
        return [target.request(path, dialect.body(self.prompts.text(number))) for number in range(first, first + count)]

    def _note(self) -> None:
        """Add notes that a reader of the figures should know."""
        answers = [answer for row in self.report.rows for answer in row.answers]
        pieces = sorted({row.counted_by for row in self.report.rows} - {"usage", ""})
        if pieces and self.report.dialect.prompt_tokens is not None:
            self.report.notes.append("some answers came without usage: their tokens are the pieces of text that came")
        made = sum(answer.tokens for answer in answers)
        if answers and made < MIN_TOKEN_SHARE * self.plan.new_tokens * len(answers):
            self.report.notes.append(
                f"answers have {made / len(answers):.1f} tokens on average, {self.plan.new_tokens} were asked for"
            )
        for row in self.report.rows:
            for kind, count in row.errors.items():
                message = f": {row.messages[kind]}" if row.messages[kind] else ""
                self.report.notes.append(f"{row.load.name}: {count} of {len(row.outcomes)} failed, {kind}{message}")
