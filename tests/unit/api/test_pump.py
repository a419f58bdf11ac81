"""The thread that steps an engine: whoever waits hears of every end, whatever fails."""

from threading import Semaphore

import pytest

from sporelm.api.pump import Pump
from sporelm.engine import Request
from sporelm.errors import BackendError
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt


def followed(pump: Pump, count: int) -> tuple[list[Request], Semaphore]:
    """Requests, and what is released at each of their ends."""
    ends = Semaphore(0)
    requests = [Request(prompt(20, seed), max_tokens=8) for seed in range(count)]

    def news(request: Request) -> None:
        if request.finish_reason is not None:
            ends.release()

    def add() -> None:
        for request in requests:
            pump.follow(request, news)

    pump.wait_for(add)
    return requests, ends


def test_each_hears_of_its_end():
    pump = Pump(engine())
    requests, ends = followed(pump, 6)
    assert all(ends.acquire(timeout=10) for _ in requests)
    assert [request.generated for request in requests] == [expected(request.prompt, 8) for request in requests]
    pump.close()


def test_after_a_failure_each_hears_of_it_though_it_cannot_be_cancelled(monkeypatch):
    made = engine()

    def broken(*_: object) -> None:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(made.runner, "run", broken)
    monkeypatch.setattr(made, "cancel", broken)
    pump = Pump(made)
    requests, ends = followed(pump, 3)
    assert all(ends.acquire(timeout=10) for _ in requests)
    assert {request.finish_reason for request in requests} == {"error"}
    with pytest.raises(BackendError, match="no memory is left"):
        pump.ask(lambda: None)
    pump.close()


def test_a_step_that_fails_once_is_tried_again(monkeypatch):
    made = engine()
    run, failing = made.runner.run, [2, 5, 6]

    def sometimes(step):
        failing[:] = [number - 1 for number in failing]
        if 0 in failing:
            raise MemoryError("no memory is left, for a moment")
        return run(step)

    monkeypatch.setattr(made.runner, "run", sometimes)
    pump = Pump(made)
    requests, ends = followed(pump, 4)
    assert all(ends.acquire(timeout=10) for _ in requests)
    assert [request.generated for request in requests] == [expected(request.prompt, 8) for request in requests]
    assert pump.failure is None
    pump.close()
