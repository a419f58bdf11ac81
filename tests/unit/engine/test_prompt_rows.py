"""Prompts with an output row at every position: computed in steps of their own, between the steps of requests."""

from collections.abc import Generator

import numpy as np
import pytest

from sporelm.api.cooperative import run_to_completion
from sporelm.api.embeddings import pool_texts
from sporelm.engine import Engine, Request
from sporelm.engine.kv.offload import OffloadStore
from sporelm.errors import RequestError
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt, rows_of
from unit.engine.test_metrics import value

TEXT = prompt(200, 7)


class Rows:
    """A text that is computed, and what was taken of it."""

    def __init__(self, made: Engine, ids: list[int] = TEXT) -> None:
        self.chunks: list[np.ndarray] = []
        self.done = False
        self.steps: Generator[bool, None, None] = made.logits(ids, lambda chunk: self.chunks.append(chunk.copy()))

    @property
    def whole(self) -> np.ndarray:
        return np.concatenate(self.chunks)

    def more(self) -> bool | None:
        """One step: whether it holds pages now, False while it waits; None at its end."""
        held = next(self.steps, None)
        self.done = held is None
        return held

    def text_waits(self, made: Engine) -> bool:
        return any(prompt.was_evicted or not prompt.is_started for prompt in made.scheduler.prompt_rows)


def assert_nothing_is_held(made: Engine) -> None:
    made.check_integrity()
    assert made.kv_cache.pages.num_free == made.limits.num_pages
    assert not made.kv_cache.sequences
    assert not made.scheduler.prompt_rows


def test_requests_go_on_between_two_steps_of_a_text():
    alone = rows_of(engine(), TEXT)
    made = engine(prefill_tokens=16)
    request = made.add(Request(prompt(10), max_tokens=40))
    rows = Rows(made)
    made.step()
    for _ in rows.steps:
        made.step()
    assert np.array_equal(rows.whole, alone)
    assert [len(chunk) for chunk in rows.chunks] == [16] * 12 + [8]  # short ones: a request decodes
    assert request.num_generated == 13
    made.run([request])
    assert request.generated == expected(request.prompt, 40)
    assert_nothing_is_held(made)


def test_a_text_takes_whole_steps_where_no_request_decodes():
    made = engine(prefill_tokens=16)
    rows = Rows(made)
    assert sum(rows.steps) == 4
    assert [len(chunk) for chunk in rows.chunks] == [48] * 4 + [8]


def test_a_text_that_is_left_gives_its_pages_back():
    made = engine()
    rows = Rows(made)
    next(rows.steps)
    assert made.kv_cache.pages.num_free < made.limits.num_pages
    rows.steps.close()
    assert_nothing_is_held(made)
    Rows(made).steps.close()  # before its first step
    assert_nothing_is_held(made)


@pytest.mark.parametrize("after", [0, 2])
def test_a_text_that_fails_gives_its_pages_back(monkeypatch, after):
    made = engine()
    rows = Rows(made)
    for _ in range(after):
        next(rows.steps)

    def broken(step: object) -> None:
        raise MemoryError("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(made.runner, "run", broken)
        with pytest.raises(MemoryError):
            next(rows.steps)
    assert_nothing_is_held(made)
    assert len(rows_of(made, TEXT)) == 200


def test_no_request_finds_what_was_computed_for_a_text():
    made = engine()
    rows = Rows(made)
    next(rows.steps)
    next(rows.steps)
    request = made.add(Request(TEXT[:90], max_tokens=2))
    made.run([request])
    assert request.cached_tokens == 0
    assert sum(rows.steps) == 2
    assert_nothing_is_held(made)


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_text_gives_way_and_each_row_is_taken_once(tmp_path, sleeps):
    alone = rows_of(engine(), TEXT)
    made = engine(num_pages=5)
    if sleeps:
        made.kv_cache.offload_store = OffloadStore(tmp_path, made.runner, lambda: "model")
    rows = Rows(made)
    for _ in range(3):
        next(rows.steps)
    assert made.kv_cache.free_pages(5)  # as a session that is woken does
    done = len(made.runner.steps)
    assert sum(rows.steps) == (1 if sleeps else 4)
    assert np.array_equal(rows.whole, alone)
    first = made.runner.steps[done].sequences[0].position
    assert first == (144 if sleeps else 0)
    assert_nothing_is_held(made)
    made.close()


def test_a_request_that_came_later_waits_for_a_text_and_does_not_take_its_pages():
    made = engine(num_pages=5)
    rows = Rows(made)  # of four pages
    next(rows.steps)
    small, large = (made.add(Request(prompt(length, 3), max_tokens=5)) for length in (50, 130))
    made.step()
    assert list(made.scheduler.running.values()) == [small]
    assert [not more for more in rows.steps] == [False] * 3
    made.run([small, large])
    assert large.generated == expected(large.prompt, 5)
    assert made.metrics.preemptions == 0
    assert_nothing_is_held(made)


def test_a_step_computes_a_text_for_which_all_requests_wait():
    """Its own caller may be busy."""
    made = engine(num_pages=5)
    rows = Rows(made)
    next(rows.steps)
    request = made.add(Request(prompt(130, 3), max_tokens=5))
    made.run([request])
    assert request.generated == expected(request.prompt, 5)
    assert np.array_equal(rows.whole, rows_of(engine(), TEXT))
    assert not list(rows.steps)
    assert_nothing_is_held(made)


def test_a_step_computes_the_first_text_that_need_not_wait():
    """The first in line lost its pages and waits for a request, and that for the second one's end."""
    made = engine(num_pages=5, max_batch=1)
    small, large = (made.add(Request(prompt(length, 3), max_tokens=3)) for length in (10, 250))
    made.step()
    first, second = (Rows(made, prompt(length, 5)) for length in (100, 70))
    assert next(first.steps)
    assert next(second.steps)
    assert made.kv_cache.free_pages(3)  # as a session that is woken does
    for _ in range(60):
        made.step()
    assert small.finish_reason is not None
    assert large.finish_reason is not None
    assert large.generated == expected(large.prompt, 3)
    list(first.steps)
    list(second.steps)
    for text, length in ((first, 100), (second, 70)):
        assert np.array_equal(text.whole, rows_of(engine(), prompt(length, 5)))
    assert_nothing_is_held(made)


def test_a_text_that_fails_in_anothers_step_fails_alone():
    made = engine(num_pages=5)

    def take(chunk: np.ndarray) -> None:
        raise ValueError("of no use")

    steps = made.logits(TEXT, take)
    request = made.add(Request(prompt(130, 3), max_tokens=5))
    other = Rows(made)
    next(other.steps)
    made.run([request])
    assert request.generated == expected(request.prompt, 5)
    with pytest.raises(ValueError, match="of no use"):
        list(steps)
    list(other.steps)
    assert_nothing_is_held(made)


def test_a_text_waits_for_pages_and_is_not_passed():
    made = engine(num_pages=4, max_batch=2)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    rows, order = Rows(made), list[str]()
    assert next(rows.steps) is False
    later = made.add(Request(prompt(20, 5), max_tokens=3))  # for which there would be room
    second = Rows(made, prompt(30, 5))
    while not (later.finish_reason and second.done and rows.done):
        made.step()
        for name, each in (("later", later.finish_reason), ("first", rows.more()), ("second", second.more())):
            if each is not False and name not in order and (name != "later" or each):
                order += [name]
    assert order == ["first", "second", "later"]
    assert request.generated == expected(request.prompt, 90)
    assert later.generated == expected(later.prompt, 3)
    assert np.array_equal(rows.whole, rows_of(engine(), TEXT))
    assert_nothing_is_held(made)


def test_a_text_that_waits_can_be_left():
    made = engine(num_pages=4, max_batch=1)
    request = made.add(Request(prompt(150), max_tokens=60))
    made.step()
    rows = Rows(made)
    assert next(rows.steps) is False
    assert made.scheduler.prompt_rows.has_waiting
    rows.steps.close()
    assert not made.scheduler.prompt_rows
    made.run([request])
    assert request.generated == expected(request.prompt, 60)
    assert_nothing_is_held(made)


def test_texts_do_not_pass_a_request_that_found_no_pages():
    made = engine(num_pages=5)
    first = Rows(made)
    next(first.steps)
    request = made.add(Request(prompt(130, 3), max_tokens=2))
    urgent = made.add(Request(prompt(30, 3), max_tokens=20, priority=-1))
    made.step()
    made.step()
    assert made.scheduler.prompt_rows.blocked_request is request
    late = Rows(made, prompt(10, 1))
    waiting = value(made.metrics, "vllm:num_requests_waiting")
    assert next(late.steps) is False
    assert value(made.metrics, "vllm:num_requests_waiting") == waiting + 1
    list(first.steps)
    assert next(late.steps) is False  # the request has not been asked again yet
    made.run([request, urgent])
    assert not list(late.steps)
    assert_nothing_is_held(made)


def test_a_text_that_is_evicted_again_and_again_finishes():
    """Requests that grow take its pages; then no later request starts until it is done."""
    made = engine(num_pages=6, max_batch=4)
    growing = [made.add(Request(prompt(60, seed), max_tokens=190)) for seed in range(2)]
    made.step()
    rows = Rows(made)
    assert next(rows.steps) is True
    for request in growing:
        while request.num_computed < 130:  # three pages each
            made.step()
    crowd = [made.add(Request(prompt(60, seed), max_tokens=60)) for seed in range(3, 9)]
    waited = 0
    while not rows.done:
        more = rows.more()
        waited += more is False
        made.step()
        assert rows.done or not any(request.start_time for request in crowd) or not rows.text_waits(made)
    assert waited
    assert np.array_equal(rows.whole, rows_of(engine(), TEXT))
    made.run([*growing, *crowd])
    assert all(request.generated == expected(request.prompt, request.max_tokens) for request in (*growing, *crowd))
    assert_nothing_is_held(made)


@pytest.mark.parametrize("count", [1, 3])
def test_texts_without_an_engine_thread_wait_too(count):
    """A caller that waits runs the steps of other requests: their streams may not be read now."""
    made = engine(num_pages=4, max_batch=1)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    found = run_to_completion(pool_texts(made, [TEXT] * count, "mean", 0), made)
    alone = run_to_completion(pool_texts(engine(), [TEXT], "mean", 0), engine())
    assert all((each == alone[0]).all() for each in found)
    made.run([request])
    assert request.generated == expected(request.prompt, 90)
    assert_nothing_is_held(made)


def test_a_text_is_left_where_those_it_waits_for_cannot_be_served():
    made = engine(num_pages=4, max_batch=1)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    run, made.runner.run = made.runner.run, lambda step: 1 // 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError) as held:
        run_to_completion(pool_texts(made, [TEXT], "mean", 0), made)
    assert not made.scheduler.prompt_rows, "a caller that keeps the error keeps others waiting"
    assert held.value
    made.runner.run = run  # type: ignore[method-assign]
    made.run([request])
    assert request.generated == expected(request.prompt, 90)
    assert_nothing_is_held(made)


def test_an_adapter_stays_while_a_text_has_it():
    made = engine()
    made.runner.set_lora_runtime = lambda adapted: None
    made.use_adapters({3: "red"}, None)
    steps = made.logits(TEXT, lambda chunk: None, 3)
    next(steps)
    assert made.uses_adapter(3)
    with pytest.raises(RequestError, match="still use this adapter"):
        made.use_adapters({}, None)
    steps.close()
    made.use_adapters({}, None)


def test_a_text_ends_with_its_engine():
    made = engine()
    rows = Rows(made)
    next(rows.steps)
    made.close()
    with pytest.raises(RequestError, match="this model is closed"):
        next(rows.steps)
    assert_nothing_is_held(made)
