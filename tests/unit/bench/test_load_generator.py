"""Loads against a server that answers as it is told: what is timed, what fails, and that the run goes on."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from sporelm.bench.serving.http_connection import BenchClient
from sporelm.bench.serving.load_generator import LoadRun, OfferedLoad, RequestOutcome, run_load
from unit.bench.scripted_server import (
    ABORT,
    CLOSE,
    DONE,
    STREAM,
    Part,
    RecordedRequest,
    ScriptedServer,
    answered,
    chunk,
    event,
    piece,
    reply,
    scripted,
    usage,
)

BODY = {"messages": [{"content": "a b"}], "max_tokens": 2, "model": "m"}


def ran(
    server: ScriptedServer,
    load: OfferedLoad,
    count: int,
    timeout: float = 60.0,
    stopped: Callable[[], bool] = lambda: False,
    body: dict[str, Any] | None = None,
) -> LoadRun:
    """The outcomes of `count` requests under a load."""

    async def main() -> LoadRun:
        target = server.target
        client = BenchClient(target)
        requests = [target.request("/chat/completions", body or BODY)] * count
        try:
            return await run_load(client, load, requests, "seed", timeout, lambda: None, stopped)
        finally:
            client.close()

    return asyncio.run(main())


def test_users_wait_for_their_answers() -> None:
    with scripted(lambda asked: answered(asked, 0.01)) as server:
        made = ran(server, OfferedLoad(users=3), 9)
    assert [outcome.error for outcome in made.outcomes] == [""] * 9
    assert 1 < server.max_running <= 3
    assert server.num_connections == 3, "connections are used again"
    for outcome in made.outcomes:
        assert (outcome.tokens, outcome.counted, outcome.prompt_tokens) == (2, True, 8)
        assert 0.01 <= outcome.ttft < outcome.seconds
        assert len(outcome.inter_token_seconds) == 1
        assert sum(outcome.inter_token_seconds) + outcome.ttft <= outcome.seconds
    assert made.whole
    assert made.cpu > 0
    assert made.wall >= max(outcome.seconds for outcome in made.outcomes)


def test_arrivals_do_not_wait() -> None:
    with scripted(lambda asked: answered(asked, 0.05)) as server:
        made = ran(server, OfferedLoad(rate=500.0), 6)
    assert server.max_running > 2
    assert [outcome.error for outcome in made.outcomes] == [""] * 6


def test_moments_of_arrival() -> None:
    load = OfferedLoad(rate=4.0)
    times = load.arrivals(4000, "x")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0.0
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
    assert load.arrivals(5, "x") == times[:5]
    assert load.arrivals(5, "y") != times[:5]


@pytest.mark.parametrize(
    ("load", "asked", "expected"),
    [
        (OfferedLoad(users=1), None, 16),
        (OfferedLoad(users=16), None, 64),
        (OfferedLoad(rate=2.0), None, 20),
        (OfferedLoad(users=4), 5, 5),
    ],
)
def test_how_many_are_sent(load: OfferedLoad, asked: int | None, expected: int) -> None:
    assert load.requests(asked) == expected


def only(script: Sequence[Part], timeout: float = 60.0) -> RequestOutcome:
    """The outcome of one request with this answer."""
    with scripted(lambda asked: script) as server:
        (outcome,) = ran(server, OfferedLoad(users=1), 1, timeout).outcomes
    return outcome


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ([reply(429, {"error": {"message": "later"}}, more="retry-after: 1\r\n")], "HTTP 429", "later"),
        ([reply(500, b"broken", kind="text/plain")], "HTTP 500", "broken"),
        ([STREAM, piece("a"), ABORT], "disconnected", ""),
        ([STREAM, piece("a"), CLOSE], "disconnected", "the server closed the connection"),
        ([CLOSE], "disconnected", "the server closed the connection"),
        ([STREAM, piece("a"), 5.0], "timeout", "no whole answer within 0.1 s"),
        ([STREAM, piece("a"), event({"error": {"message": "out of memory"}}), DONE], "error in the stream", "out of"),
        ([STREAM, piece("a"), chunk(b"")], "cut short", "the stream ended after 1 events"),
        ([STREAM, piece(""), DONE], "empty answer", ""),
        ([reply(200, {"choices": [{"text": "a"}]})], "no stream", ""),
        ([b"\x00\x01 nonsense\r\n\r\n"], "no HTTP", ""),
        ([STREAM, chunk(b"x" * 70_000) * 16, 5.0], "no HTTP", "an event of the answer is longer"),
    ],
)
def test_failures_have_kinds(script: Sequence[Part], kind: str, said: str) -> None:
    outcome = only(script, 0.1 if kind == "timeout" else 60.0)
    assert outcome.error == kind
    assert said in outcome.message


def test_connection_refused() -> None:
    with scripted() as server:
        pass
    made = ran(server, OfferedLoad(users=2), 3)
    assert [outcome.error for outcome in made.outcomes] == ["no connection"] * 3
    assert made.outcomes[0].message == "Connection refused"


def test_a_failure_ends_nothing() -> None:
    numbers = iter(range(100))

    def script(asked: RecordedRequest) -> Sequence[Part]:
        return [reply(429, {}), [STREAM, ABORT], None][next(numbers) % 3] or answered(asked)  # type: ignore[return-value]

    def every(asked: RecordedRequest) -> Sequence[Part]:
        found = script(asked)
        return [found] if isinstance(found, bytes) else found

    with scripted(every) as server:
        made = ran(server, OfferedLoad(users=2), 12)
    kinds = sorted(outcome.error for outcome in made.outcomes)
    assert kinds == [""] * 4 + ["HTTP 429"] * 4 + ["disconnected"] * 4


def test_a_connection_closed_while_idle_is_not_a_failure() -> None:
    with scripted(lambda asked: [*answered(asked), CLOSE]) as server:
        made = ran(server, OfferedLoad(users=1), 4)
    assert [outcome.error for outcome in made.outcomes] == [""] * 4
    assert server.num_connections >= 4


def test_what_comes_after_a_timeout_is_nobodys() -> None:
    slow = iter([True, False])
    with scripted(lambda asked: answered(asked, 30.0 if next(slow) else 0.0)) as server:
        made = ran(server, OfferedLoad(users=1), 2, 0.4)
    assert [outcome.error for outcome in made.outcomes] == ["timeout", ""]
    assert made.outcomes[1].tokens == 2
    assert server.num_connections == 2


@pytest.mark.parametrize(
    ("ending", "tokens", "counted"),
    [([DONE], 2, False), ([usage(3, 9, prompt_tokens_details={"cached_tokens": 2}), DONE], 9, True)],
)
def test_who_counts_the_tokens(ending: list[bytes], tokens: int, counted: bool) -> None:
    outcome = only([STREAM, piece("a"), piece("b", "stop"), *ending])
    assert (outcome.tokens, outcome.counted) == (tokens, counted)
    assert outcome.cached_tokens == (2 if counted else None)


def test_a_stream_may_end_without_its_last_word() -> None:
    assert only([STREAM, piece("a", "stop"), chunk(b"")]).error == ""


def test_an_answer_of_http_1_0() -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
    assert only([head, body, CLOSE]).tokens == 1


def test_stopped_in_the_middle() -> None:
    first = threading.Event()

    def script(asked: RecordedRequest) -> Sequence[Part]:
        if first.is_set():
            return [STREAM, 30.0]
        first.set()
        return answered(asked)

    with scripted(script) as server:
        made = ran(server, OfferedLoad(users=1), 3, stopped=first.is_set)
        assert not made.whole
        assert [outcome.error for outcome in made.outcomes] == [""]
        again = ran(server, OfferedLoad(rate=100.0), 3, stopped=lambda: True)
    assert not again.whole
    assert again.outcomes == []
