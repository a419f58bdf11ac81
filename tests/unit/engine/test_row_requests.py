"""Requests for a row of outputs at every position: they share the queue, the pages and the steps of the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm.api.cooperative import run_to_completion
from sporelm.api.embeddings import pool_texts
from sporelm.engine import Engine, Request, Step
from sporelm.engine.request import OutputKind
from sporelm.errors import BackendError, ContextOverflow, RequestError
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt, rows_of
from unit.engine.test_metrics import value

TEXT = prompt(200, 7)
KINDS: tuple[OutputKind, ...] = ("logits", "hidden")


class Rows:
    """A request for rows, and the rows that it got."""

    def __init__(self, made: Engine, ids: list[int] = TEXT, output: OutputKind = "logits", **options: Any) -> None:
        self.chunks: list[np.ndarray] = []
        self.request = made.add(Request(ids, output=output, on_rows=self.take, **options))

    def take(self, chunk: np.ndarray) -> None:
        self.chunks.append(chunk.copy())

    @property
    def whole(self) -> np.ndarray:
        return np.concatenate(self.chunks)

    def assert_complete(self) -> None:
        assert self.request.finish_reason == "stop"
        assert np.array_equal(self.whole, rows_of(engine(), list(self.request.prompt)))


def steps_until(made: Engine, is_true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_true():
            return
        made.step()
    raise AssertionError("this never came")


def assert_nothing_is_held(made: Engine) -> None:
    made.check_integrity()
    assert made.kv_cache.pages.num_free == made.limits.num_pages
    assert not made.kv_cache.sequences
    assert made.is_idle
    assert not made.scheduler.num_running_hidden
    assert not made.scheduler.num_running_by_tenant


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_as_long_as_steps_where_no_request_decodes(kind: OutputKind) -> None:
    made = engine(prefill_tokens=16)
    rows = Rows(made, output=kind)
    made.run([rows.request])
    assert [len(chunk) for chunk in rows.chunks] == [48] * 4 + [8]
    rows.assert_complete()
    assert_nothing_is_held(made)


def test_logits_come_from_the_steps_of_other_requests() -> None:
    made = engine(prefill_tokens=16)
    request = made.add(Request(prompt(10), max_tokens=40))
    made.step()
    rows = Rows(made)
    steps_until(made, lambda: rows.request.finish_reason is not None)
    assert [len(chunk) for chunk in rows.chunks] == [16] * 12 + [8]  # short ones: a request decodes
    assert request.num_generated == 14
    shared = made.runner.steps[1]
    assert [scheduled.is_sampled for scheduled in shared.sequences] == [True, False]
    assert [scheduled.num_outputs for scheduled in shared.sequences] == [1, 16]
    made.run([request])
    rows.assert_complete()
    assert request.generated == expected(request.prompt, 40)
    assert_nothing_is_held(made)


def test_hidden_states_take_turns_with_other_steps() -> None:
    made = engine(prefill_tokens=16)
    request = made.add(Request(prompt(10), max_tokens=40))
    made.step()
    rows = [Rows(made, prompt(60, seed), "hidden") for seed in range(2)]
    steps_until(made, lambda: all(each.request.finish_reason for each in rows))
    kinds = "".join("t" if step.sequences[0].is_sampled else "h" for step in made.runner.steps)
    assert kinds == "tt" + "ht" * 7 + "h"
    assert max(step.num_tokens for step in made.runner.steps[1:]) == 16
    made.run([request])
    for each in rows:
        each.assert_complete()
    assert request.generated == expected(request.prompt, 40)
    assert_nothing_is_held(made)


def test_short_prompts_share_a_step_and_each_has_its_rows() -> None:
    made = engine()
    several = [Rows(made, prompt(length, length), kind) for kind in KINDS for length in (9, 5, 1)]
    sampled = made.add(Request(prompt(4, 4), max_tokens=1))
    made.run([*(each.request for each in several), sampled])
    assert len(made.runner.steps) <= 4
    for each in several:
        each.assert_complete()
    assert sampled.generated == expected(sampled.prompt, 1)
    assert_nothing_is_held(made)


def test_a_row_is_never_taken_for_a_token() -> None:
    """Single tokens, so that all sequences of a step look alike, beside sampled ones and drafts."""
    made = engine(token_budget=4)
    requests = [made.add(Request(prompt(3, seed), max_tokens=9)) for seed in range(2)]
    rows = Rows(made, prompt(40, 3))
    made.run([*requests, rows.request])
    assert any(step.num_tokens == len(step.sequences) == 4 for step in made.runner.steps) or len(rows.chunks) > 3
    for request in requests:
        assert request.generated == expected(request.prompt, 9)
    rows.assert_complete()


def test_a_closed_generator_cancels_its_prompt() -> None:
    made = engine()
    rows = made.logits(TEXT, lambda chunk: None)
    next(rows)
    made.step()
    assert made.kv_cache.pages.num_free < made.limits.num_pages
    rows.close()
    assert_nothing_is_held(made)
    made.hidden(TEXT, lambda chunk: None).close()  # before it has begun
    assert_nothing_is_held(made)


def test_a_cancelled_prompt_raises_to_its_caller() -> None:
    made = engine()
    rows = made.logits(TEXT, lambda chunk: None)
    next(rows)
    (request,) = made.scheduler.waiting
    made.cancel(request)
    with pytest.raises(RequestError, match="was cancelled"):
        next(rows)
    assert_nothing_is_held(made)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 2])
def test_an_error_of_a_step_of_rows_reaches_their_caller_only(
    monkeypatch: pytest.MonkeyPatch, kind: OutputKind, after: int
) -> None:
    made = engine()
    rows = getattr(made, kind)(TEXT, lambda chunk: None)
    next(rows)
    for _ in range(after):
        made.step()

    def broken(step: object) -> None:
        raise MemoryError("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(made.runner, "run" if kind == "logits" else "embed", broken)
        (output,) = made.step()
    assert output.finish_reason == "error"
    with pytest.raises(MemoryError, match="no memory is left"):
        next(rows)
    assert_nothing_is_held(made)
    assert len(rows_of(made, TEXT)) == 200


def test_an_error_of_a_shared_step_ends_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(prefill_tokens=16)
    request = made.add(Request(prompt(10), max_tokens=9))
    made.step()
    rows = Rows(made)
    made.step()
    run = made.runner.run

    def broken(step: Step) -> None:
        run(step)
        raise MemoryError("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(made.runner, "run", broken)
        with pytest.raises(MemoryError):
            made.step()
    made.run([request, rows.request])
    rows.assert_complete()
    assert request.generated == expected(request.prompt, 9)
    assert_nothing_is_held(made)


def test_an_error_of_a_callback_ends_its_prompt_only() -> None:
    made = engine()

    def take(chunk: np.ndarray) -> None:
        raise ValueError("of no use")

    failing = made.logits(prompt(20, 2), take)
    next(failing)
    other = Rows(made, prompt(20, 3))
    request = made.add(Request(prompt(5), max_tokens=5))
    made.run([other.request, request])
    with pytest.raises(ValueError, match="of no use"):
        next(failing)
    other.assert_complete()
    assert request.generated == expected(request.prompt, 5)
    assert_nothing_is_held(made)


def test_an_interrupted_callback_ends_its_prompt_and_rows_are_not_lost_silently() -> None:
    made = engine()

    def take(chunk: np.ndarray) -> None:
        raise KeyboardInterrupt

    failing = made.logits(TEXT, take)
    next(failing)
    other = Rows(made, prompt(20, 3))
    with pytest.raises(KeyboardInterrupt):
        made.step()
    with pytest.raises(BackendError, match="interrupted while its rows were delivered"):
        next(failing)
    made.run([other.request])
    other.assert_complete()
    assert_nothing_is_held(made)


def test_a_callback_may_cancel_prompts_of_its_step() -> None:
    made = engine()
    requests: list[Request] = []

    def take(chunk: np.ndarray) -> None:
        for request in requests:
            made.cancel(request)

    requests += [made.add(Request(prompt(20, seed), output="logits", on_rows=take)) for seed in range(2)]
    made.step()
    assert [request.finish_reason for request in requests] == ["cancelled"] * 2
    assert_nothing_is_held(made)


def test_prefixes_are_neither_taken_nor_left() -> None:
    made = engine()
    first = made.add(Request(TEXT[:90], max_tokens=2))
    made.run([first])
    rows = Rows(made)
    made.step()
    queries = made.kv_cache.prefix_cache.num_query_tokens
    made.run([rows.request])
    assert rows.request.cached_tokens == 0
    assert made.kv_cache.prefix_cache.num_query_tokens == queries == 90
    rows.assert_complete()
    request = made.add(Request([*TEXT, 1], max_tokens=2))
    made.run([request])
    assert request.cached_tokens == 64  # of the first request
    assert_nothing_is_held(made)


def test_metrics_count_prompts_of_rows() -> None:
    made = engine()
    made.run([Rows(made).request, made.add(Request(prompt(5), max_tokens=2))])
    assert value(made.metrics, "vllm:prompt_tokens_total") == 205
    assert made.metrics.ended_by == {"stop": 1, "length": 1}
    for number in range(5):
        Rows(made, prompt(200, number))
    made.step()
    assert value(made.metrics, "vllm:num_requests_running") == 1
    assert value(made.metrics, "vllm:num_requests_waiting") == 4


def test_each_row_is_delivered_once_though_a_preempted_prompt_is_recomputed() -> None:
    made = engine(num_pages=4, prefill_tokens=8)
    early = made.add(Request(prompt(120, 3), max_tokens=60))
    made.step()
    rows = Rows(made, TEXT[:120])
    steps_until(made, lambda: rows.request.num_delivered >= 64)
    made.run([early, rows.request])
    assert made.metrics.preemptions
    assert sum(map(len, rows.chunks)) == 120
    rows.assert_complete()
    assert early.generated == expected(early.prompt, 60)
    assert_nothing_is_held(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_waits_for_pages_and_is_not_passed(kind: OutputKind) -> None:
    made = engine(num_pages=4, max_batch=2)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    first = Rows(made, output=kind)
    made.step()
    assert not first.request.start_time
    later = made.add(Request(prompt(20, 5), max_tokens=3))  # for which there would be room
    second = Rows(made, prompt(30, 5), kind)
    made.run([first.request, later, second.request])
    assert first.request.start_time < later.start_time < second.request.start_time
    made.run([request])
    assert request.generated == expected(request.prompt, 90)
    assert later.generated == expected(later.prompt, 3)
    first.assert_complete()
    second.assert_complete()
    assert_nothing_is_held(made)


def test_a_prompt_does_not_pass_a_request_that_lacks_pages() -> None:
    made = engine(num_pages=5)
    growing = made.add(Request(prompt(100), max_tokens=100))
    steps_until(made, lambda: growing.num_computed >= 130)
    large = made.add(Request(prompt(200, 3), max_tokens=2))
    late = Rows(made, prompt(10, 1))
    made.step()
    assert not late.request.start_time
    made.run([growing, large, late.request])
    assert large.start_time < late.request.start_time
    assert_nothing_is_held(made)


def test_a_caller_that_does_not_step_blocks_no_other() -> None:
    made = engine(num_pages=5)
    rows = Rows(made)
    request = made.add(Request(prompt(130, 3), max_tokens=5))
    made.run([request])
    assert request.generated == expected(request.prompt, 5)
    rows.assert_complete()
    assert_nothing_is_held(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_finishes_though_more_and_more_requests_come(kind: OutputKind) -> None:
    made = engine(num_pages=6, max_batch=4)
    growing = [made.add(Request(prompt(60, seed), max_tokens=190)) for seed in range(2)]
    made.step()
    rows = Rows(made, output=kind)
    crowd: list[Request] = []
    while rows.request.finish_reason is None:
        assert len(crowd) < 600
        crowd.append(made.add(Request(prompt(60, len(crowd)), max_tokens=60)))
        made.step()
    rows.assert_complete()
    assert sum(request.start_time > rows.request.start_time for request in crowd) + sum(
        not request.start_time for request in crowd
    ) == len(crowd)
    made.run([*growing, *crowd])
    assert all(request.generated == expected(request.prompt, request.max_tokens) for request in growing)
    assert_nothing_is_held(made)


@pytest.mark.parametrize("count", [1, 3])
def test_texts_without_an_engine_thread_wait_too(count: int) -> None:
    """A caller that waits steps the requests of others: their streams may not be read now."""
    made = engine(num_pages=4, max_batch=1)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    found = run_to_completion(pool_texts(made, [TEXT] * count, "mean", 0), made)
    other = engine()
    alone = run_to_completion(pool_texts(other, [TEXT], "mean", 0), other)
    assert all((each == alone[0]).all() for each in found)
    made.run([request])
    assert request.generated == expected(request.prompt, 90)
    assert_nothing_is_held(made)


def test_a_text_ends_where_its_callers_step_of_others_fails() -> None:
    made = engine(num_pages=4, max_batch=1)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    run, made.runner.run = made.runner.run, lambda step: 1 // 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError) as held:
        run_to_completion(pool_texts(made, [TEXT], "mean", 0), made)
    assert not list(made.scheduler.waiting), "a caller that keeps the error keeps others waiting"
    assert held.value
    made.runner.run = run  # type: ignore[method-assign]
    made.run([request])
    assert request.generated == expected(request.prompt, 90)
    assert_nothing_is_held(made)


def test_what_a_prompt_of_rows_is_refused_for() -> None:
    made = engine()
    for ids, error, message in (
        (prompt(257), ContextOverflow, "the prompt has 257 tokens, the context holds 256"),
        ([], RequestError, "has no tokens"),
        ([97], RequestError, "holds token 97"),
    ):
        with pytest.raises(error, match=message) as caught:
            next(made.logits(ids, lambda chunk: None))
        assert "roll" not in str(caught.value)
    assert_nothing_is_held(made)


def test_the_queues_limit_does_not_end_a_list_that_has_begun() -> None:
    made = engine(max_waiting=1)
    made.add(Request(prompt(5), max_tokens=1))
    with pytest.raises(RequestError, match="the limit is 1"):
        made.add(Request(prompt(5), max_tokens=1))
    rows = Rows(made)
    made.run([rows.request])
    rows.assert_complete()


def test_an_adapter_stays_while_a_prompt_of_rows_has_it() -> None:
    made = engine()
    made.runner.set_lora_runtime = lambda adapted: None  # type: ignore[attr-defined]
    made.use_adapters({3: "red"}, None)
    steps = made.logits(TEXT, lambda chunk: None, 3)
    next(steps)
    assert made.uses_adapter(3)
    made.step()
    assert made.runner.steps[-1].sequences[0].adapter_id == 3  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match="still use this adapter"):
        made.use_adapters({}, None)
    steps.close()
    made.use_adapters({}, None)


def test_a_prompt_of_rows_ends_with_its_engine() -> None:
    made = engine()
    rows = made.logits(TEXT, lambda chunk: None)
    next(rows)
    made.step()
    made.close()
    with pytest.raises(RequestError, match="this model is closed"):
        next(rows)
    assert_nothing_is_held(made)


def test_a_shortage_is_an_error_and_not_a_wait_without_end() -> None:
    made = engine(num_pages=4)
    sequences = [made.kv_cache.new_sequence() for _ in range(4)]
    for sequence in sequences:
        made.kv_cache.acquire(sequence)
        assert made.kv_cache.reserve(sequence, 64, [])
    rows = Rows(made)
    with pytest.raises(BackendError, match="all 4 pages are held"):
        made.step()
    made.cancel(rows.request)
    for sequence in sequences:
        made.kv_cache.drop(sequence)
    made.kv_cache.check_integrity()
