"""The thread that steps an engine: callers that wait hear of every end, whatever fails."""

from threading import Event, Semaphore
from typing import Any

import pytest

from sporelm.api.cooperative import CooperativeTask, run_to_completion
from sporelm.api.embeddings import pool_texts
from sporelm.api.engine_thread import EngineTask, EngineThread
from sporelm.engine import Engine, Request, Step
from sporelm.errors import BackendError, ContextOverflow, QueueFull
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt


def followed(thread: EngineThread, count: int) -> tuple[list[Request], Semaphore]:
    """Requests, and what is released at each of their ends."""
    ends = Semaphore(0)
    requests = [Request(prompt(20, seed), max_tokens=8) for seed in range(count)]

    def news(request: Request) -> None:
        if request.finish_reason is not None:
            ends.release()

    def add() -> None:
        for request in requests:
            thread.add_request(request, news)

    thread.run_between_steps(add)
    return requests, ends


def test_each_hears_of_its_end():
    thread = EngineThread(engine())
    requests, ends = followed(thread, 6)
    assert all(ends.acquire(timeout=60) for _ in requests)
    assert [request.generated for request in requests] == [expected(request.prompt, 8) for request in requests]
    thread.close()


def test_after_a_failure_each_hears_of_it_though_it_cannot_be_cancelled(monkeypatch):
    made = engine()

    def broken(*_: object) -> None:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(made.runner, "run", broken)
    monkeypatch.setattr(made, "cancel", broken)
    thread = EngineThread(made)
    requests, ends = followed(thread, 3)
    assert all(ends.acquire(timeout=60) for _ in requests)
    assert {request.finish_reason for request in requests} == {"error"}
    with pytest.raises(BackendError, match="no memory is left"):
        thread.submit(lambda: None)
    thread.close()


def test_after_a_failure_each_hears_of_it_though_some_wished_to_be_cancelled(monkeypatch):
    made = engine()
    entered, may = Event(), Event()

    def run(*_: object) -> None:
        entered.set()
        assert may.wait(60)
        raise MemoryError("no memory is left")

    def cancel(*_: object) -> None:
        raise MemoryError("nor for this")

    monkeypatch.setattr(made.runner, "run", run)
    monkeypatch.setattr(made, "cancel", cancel)
    thread = EngineThread(made)
    requests, ends = followed(thread, 3)
    assert entered.wait(60)
    for request in requests:
        thread.cancel(request)
    may.set()
    assert all(ends.acquire(timeout=60) for _ in requests)
    thread.close()


def test_a_step_that_fails_once_is_tried_again(monkeypatch):
    made = engine()
    run, failing = made.runner.run, [2, 5, 6]

    def sometimes(step):
        failing[:] = [number - 1 for number in failing]
        if 0 in failing:
            raise MemoryError("no memory is left, for a moment")
        return run(step)

    monkeypatch.setattr(made.runner, "run", sometimes)
    thread = EngineThread(made)
    requests, ends = followed(thread, 4)
    assert all(ends.acquire(timeout=60) for _ in requests)
    assert [request.generated for request in requests] == [expected(request.prompt, 8) for request in requests]
    assert thread.failure is None
    thread.close()


class Ends:
    """A recorder of the results and errors of tasks."""

    def __init__(self) -> None:
        self.reported = Semaphore(0)
        self.results: list[tuple[int, Any, BaseException | None]] = []

    def make_task(self, number: int, steps: CooperativeTask[Any]) -> EngineTask:
        def ended(result: Any, error: BaseException | None) -> None:
            self.results.append((number, result, error))
            self.reported.release()

        return EngineTask(steps, ended)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.reported.acquire(timeout=60)


def pooled_texts(made: Engine, *lengths: int) -> CooperativeTask[Any]:
    return pool_texts(made, [prompt(length, length) for length in lengths], "mean", 0)


def pooled_alone(length: int) -> Any:
    made = engine()
    return run_to_completion(pooled_texts(made, length), made)


def assert_nothing_is_held(thread: EngineThread) -> None:
    thread.run_between_steps(thread.engine.check_integrity)
    thread.run_between_steps(lambda: None)
    assert thread.engine.kv_cache.pages.num_free == thread.engine.limits.num_pages
    assert thread.engine.is_idle


def test_steps_of_texts_and_of_requests_take_turns():
    made = engine(prefill_tokens=8)
    thread = EngineThread(made)
    requests, ends = followed(thread, 3)
    texts = Ends()
    thread.run_between_steps(
        lambda: [thread.submit_task(texts.make_task(number, pooled_texts(made, 40))) for number in range(3)] and None
    )
    texts.wait(3)
    assert all(ends.acquire(timeout=60) for _ in requests)
    kinds = "".join("r" if step.sequences[0].is_sampled else "t" for step in made.runner.steps)
    assert "tt" not in kinds.rstrip("t")  # one step of texts, and then one of those who wait for tokens
    assert [request.generated for request in requests] == [expected(request.prompt, 8) for request in requests]
    alone = pooled_alone(40)
    assert all((result[0] == alone[0]).all() and error is None for _, result, error in texts.results)
    assert_nothing_is_held(thread)
    thread.close()


def test_texts_wait_while_all_pages_are_held_and_can_be_left_meanwhile():
    made = engine(num_pages=4, max_batch=1)
    thread, texts, ended = EngineThread(made), Ends(), Semaphore(0)
    request = Request(prompt(250), max_tokens=6)

    def begin() -> None:
        thread.add_request(request, lambda news: ended.release() if news.finish_reason else None)
        made.step()  # now it has all pages
        works = [texts.make_task(number, pooled_texts(made, 200)) for number in range(3)]
        for work in works:
            thread.submit_task(work)
        thread.cancel_task(works[1])

    thread.run_between_steps(begin)
    texts.wait(2)
    assert ended.acquire(timeout=60)
    assert request.generated == expected(request.prompt, 6)
    alone = pooled_alone(200)
    assert [number for number, _, _ in texts.results] == [0, 2]
    assert all((result[0] == alone[0]).all() and error is None for _, result, error in texts.results)
    assert made.metrics.preemptions == 0
    assert_nothing_is_held(thread)
    thread.close()


def test_a_text_that_is_not_being_computed_does_not_hold_up_waiting_texts():
    made = engine(num_pages=4, token_budget=8)
    chunks: list[Any] = []
    theirs = made.hidden(prompt(200, 1), lambda chunk: chunks.append(chunk.copy()))
    next(theirs)
    made.step()  # it has its pages, and its caller is busy elsewhere
    thread, texts = EngineThread(made), Ends()
    thread.submit_task(texts.make_task(0, pooled_texts(made, 200)))
    texts.wait()
    assert texts.results[0][2] is None
    assert sum(map(len, chunks)) == 200
    assert not list(theirs)
    assert_nothing_is_held(thread)
    thread.close()


def test_a_text_that_is_left_in_the_middle_gives_its_pages_back():
    made = engine(token_budget=8)
    thread = EngineThread(made)
    run, begun, go_on = made.runner.embed, Event(), Event()

    def embed(step: Step) -> Any:
        if step.sequences[0].position == 16:
            begun.set()
            assert go_on.wait(60)
        return run(step)

    made.runner.embed = embed  # type: ignore[method-assign]
    texts = Ends()
    work = texts.make_task(0, pooled_texts(made, 200))
    thread.submit_task(work)
    assert begun.wait(60)
    thread.cancel_task(work)
    go_on.set()
    assert_nothing_is_held(thread)
    assert len(made.runner.steps) == 3
    assert not texts.results
    thread.cancel_task(work)  # again, when it has gone
    assert_nothing_is_held(thread)
    thread.close()


def test_lists_of_many_texts_let_those_of_one_pass():
    made = engine(token_budget=8)
    thread = EngineThread(made)
    texts = Ends()
    works = [texts.make_task(0, pooled_texts(made, *[250] * 4)), texts.make_task(1, pooled_texts(made, *[9] * 100))]
    works += [texts.make_task(number, pooled_texts(made, 9)) for number in range(2, 20)]
    thread.run_between_steps(lambda: [thread.submit_task(work) for work in works] and None)
    texts.wait(20)
    assert made.metrics.preemptions == 0
    assert [number for number, _, _ in texts.results[:18]] == list(range(2, 20))  # before the lists of many texts
    assert not [error for _, _, error in texts.results if error is not None]
    assert_nothing_is_held(thread)
    thread.close()


def test_the_queue_of_tasks_is_limited_and_an_ended_or_cancelled_task_gives_its_place_back():
    made = engine(max_waiting=2, token_budget=8)
    thread, texts = EngineThread(made), Ends()
    may = Event()

    def hold() -> None:
        assert may.wait(60)

    for _ in range(2):
        thread.submit(hold)
        works = [texts.make_task(number, pooled_texts(made, length)) for number, length in enumerate((9, 257))]
        for work in works:
            thread.submit_task(work)
        with pytest.raises(QueueFull, match="2 lists of texts"):
            thread.submit_task(texts.make_task(2, pooled_texts(made, 9)))
        may.set()
        texts.wait(2)  # one of them fails
        may.clear()
    for number in range(4):
        work = texts.make_task(number, pooled_texts(made, *[250] * 4))
        thread.submit_task(work)
        thread.cancel_task(work)
        thread.run_between_steps(lambda: None)
    assert_nothing_is_held(thread)
    thread.close()


def test_callers_hear_of_texts_that_fail_or_remain_at_the_end():
    made = engine(token_budget=8)
    thread = EngineThread(made)
    texts = Ends()
    thread.submit_task(texts.make_task(0, pooled_texts(made, 257)))
    texts.wait()
    assert isinstance(texts.results[0][2], ContextOverflow)
    requests, ends = followed(thread, 1)
    assert ends.acquire(timeout=60)
    assert requests[0].finish_reason == "length"
    thread.run_between_steps(
        lambda: [thread.submit_task(texts.make_task(number, pooled_texts(made, 250))) for number in (1, 2, 3)] and None
    )
    thread.close()
    texts.wait(3)
    for _, result, error in texts.results[1:]:
        assert result is not None or (isinstance(error, BackendError) and "was closed" in str(error))
    made.check_integrity()
    assert made.kv_cache.pages.num_free == made.limits.num_pages
