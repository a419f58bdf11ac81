"""Load generator: sends requests in a closed loop of users or at a random rate, and records each outcome."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter, process_time
from typing import TypeVar

from sporelm.bench.serving.event_stream import error_message, find_usage, is_finished
from sporelm.bench.serving.http_connection import BenchClient, HttpAnswer, ServerDisconnected, connection_failure_reason
from sporelm.bench.serving.http_reader import InvalidHttp

T = TypeVar("T")
STOP_POLL_SECONDS = 0.1  # seconds between looks at whether to stop


@dataclass(frozen=True)
class OfferedLoad:
    """`users` that each send the next request when the last one is answered; or, with a `rate`, requests a second that
    come whether others are answered or not, with exponential gaps."""

    users: int = 0
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"c {self.users}" if self.rate is None else f"{self.rate:g}/s"

    def requests(self, asked: int | None) -> int:
        """How many are sent: what was asked for, or some for each user, or about ten seconds of them; at least 16."""
        return asked or max(16, 4 * self.users, round(10 * (self.rate or 0)))

    def arrivals(self, count: int, seed: str) -> list[float]:
        """Seconds from the start to each request, of a rate."""
        assert self.rate is not None
        draw = random.Random(f"{seed} arrivals")
        at = 0.0
        found = []
        for _ in range(count):
            found.append(at)
            at += draw.expovariate(self.rate)
        return found


@dataclass(frozen=True)
class RequestOutcome:
    """The outcome of one request; times in seconds. A failed answer has an `error`, its kind, and a `message`.

    `ttft` is from the request to its first text, `inter_token_seconds` are between pieces of text. `tokens` are as
    the server counted them (`counted`), else the pieces.
    """

    began: float
    ended: float
    error: str = ""
    message: str = ""
    ttft: float = 0.0
    inter_token_seconds: tuple[float, ...] = ()
    tokens: int = 0
    counted: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class LoadRun:
    """One run of a load. `cpu` is the time this program took for it, in seconds; `whole` is False if it was stopped."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = 0.0
    whole: bool = True


def classify_answer(answer: HttpAnswer, began: float, ended: float) -> RequestOutcome:
    """Turn a complete answer into an outcome."""
    if answer.status != 200:
        return RequestOutcome(began, ended, f"HTTP {answer.status}", error_message(answer.content))
    if not answer.streamed:
        return RequestOutcome(began, ended, "no stream", error_message(answer.content))
    stream = answer.events
    if stream.error is not None:
        return RequestOutcome(began, ended, "error in the stream", error_message(stream.error))
    ending = stream.ending()
    if not stream.done and not is_finished(ending):
        return RequestOutcome(began, ended, "cut short", f"the stream ended after {stream.num_events} events")
    usage = find_usage(ending)
    made = usage.get("completion_tokens")
    counted = isinstance(made, int)
    tokens = made if isinstance(made, int) else len(stream.times)
    if not tokens:
        return RequestOutcome(began, ended, "empty answer", "no token came")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    times = stream.times or [ended]  # tokens without a text
    return RequestOutcome(
        began,
        ended,
        ttft=times[0] - began,
        inter_token_seconds=tuple(later - earlier for earlier, later in pairwise(times)),
        tokens=tokens,
        counted=counted,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=cached,
    )


async def send_request(
    client: BenchClient, request: bytes, timeout: float, began: float | None = None
) -> RequestOutcome:
    """Send a request; whatever goes wrong is an outcome too. `began` is when it was due, if not now."""
    began = perf_counter() if began is None else began
    try:
        async with asyncio.timeout(timeout):
            answer = await client.ask(request)
    except TimeoutError:
        return RequestOutcome(began, perf_counter(), "timeout", f"no whole answer within {timeout:g} s")
    except ServerDisconnected as reason:
        return RequestOutcome(began, perf_counter(), "disconnected", str(reason))
    except InvalidHttp as reason:
        return RequestOutcome(began, perf_counter(), "no HTTP", str(reason))
    except OSError as reason:
        return RequestOutcome(began, perf_counter(), "no connection", connection_failure_reason(reason))
    return classify_answer(answer, began, perf_counter())


async def run_load(
    client: BenchClient,
    load: OfferedLoad,
    requests: Sequence[bytes],
    seed: str,
    timeout: float,
    tick: Callable[[], None],
    stopped: Callable[[], bool],
) -> LoadRun:
    """Send all of them under a load. `tick` is called after each; when `stopped` says so, the rest is dropped."""
    made = LoadRun()

    async def one(number: int, due: float | None = None) -> None:
        made.outcomes.append(await send_request(client, requests[number], timeout, due))
        tick()

    work = (
        run_closed_loop(load.users, len(requests), one)
        if load.rate is None
        else run_open_loop(load, len(requests), seed, one)
    )
    gc.disable()  # a collection would delay all requests at once
    began = perf_counter()
    cpu = process_time()
    try:
        running = asyncio.ensure_future(work)
        made.whole = await run_until_stopped(running, stopped)
    finally:
        made.wall = perf_counter() - began
        made.cpu = process_time() - cpu
        gc.enable()
    return made


async def run_until_stopped(running: asyncio.Future[T], stopped: Callable[[], bool]) -> bool:
    """Wait for something; False if it was stopped before it was done. Raises what it raises."""
    try:
        while not running.done():
            await asyncio.wait({running}, timeout=STOP_POLL_SECONDS)
            if stopped() and not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                return False
        running.result()
        return True
    finally:
        running.cancel()


async def run_closed_loop(users: int, count: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Run `users` users, each with one request at a time."""
    numbers = iter(range(count))

    async def user() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(user() for _ in range(min(users, count))))


async def run_open_loop(load: OfferedLoad, count: int, seed: str, one: Callable[[int, float], Awaitable[None]]) -> None:
    """Requests at their moments. One that is sent late, because this program was busy, counts from when it was due."""
    start = perf_counter()
    tasks = []
    try:
        for number, at in enumerate(load.arrivals(count, seed)):
            await asyncio.sleep(max(0.0, start + at - perf_counter()))
            tasks.append(asyncio.ensure_future(one(number, start + at)))
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
