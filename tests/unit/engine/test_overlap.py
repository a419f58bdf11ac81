"""Steps that are launched before the one before is committed: the same tokens, and nothing of a discarded row stays."""

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest

from sporelm.engine import Engine, EngineConfig, Request, Sampling, Step
from sporelm.engine.kv import KvCache
from sporelm.engine.kv.offload import OffloadStore
from sporelm.engine.sampling import device_sampler
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.speculative import Speculation
from sporelm.engine.step import UNKNOWN
from sporelm.errors import MemoryShortage
from sporelm.ops.paged_attention import PAGE
from sporelm.plan import Plan
from unit.engine.hashed import (
    VOCAB,
    Guesses,
    HashedRunner,
    SteadySpeculation,
    Wish,
    cells_of,
    expected_output,
    scores_after,
)
from unit.engine.stand_in_device import LaunchedRunner, LaunchedStatefulRunner

CONTEXT = 4 * PAGE
LIMITS = EngineConfig(CONTEXT, CONTEXT, VOCAB, token_budget=64, max_batch=6, num_pages=40)
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.9, seed=1),
    Sampling(temperature=1.2, top_k=5, seed=2),
    Sampling(temperature=0.7, top_p=0.9, min_p=0.01, seed=3),
    Sampling(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.2, seed=4),
    Sampling(temperature=1.0, typical_p=0.6, seed=5),
    Sampling(logprobs=2),
]


def make_engine(limits: EngineConfig = LIMITS, runner_class: type = LaunchedRunner) -> Engine:
    runner = runner_class(limits)
    return Engine(runner, limits, device_sampler=DeviceSampler(runner.device, VOCAB))


def add_copy(rows: list[np.ndarray], chunk: np.ndarray) -> None:
    rows.append(chunk.copy())


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng([length, seed]).integers(0, VOCAB, length).tolist())


@pytest.mark.parametrize("runner_class", [LaunchedRunner, LaunchedStatefulRunner])
def test_tokens_are_those_of_each_request_alone(runner_class: type) -> None:
    limits = (
        LIMITS
        if runner_class is LaunchedRunner
        else EngineConfig(CONTEXT, CONTEXT, VOCAB, 64, 6, 40, num_states=30, state_interval=2)
    )
    engine = make_engine(limits, runner_class)
    wishes = [
        Wish(prompt(5 + 17 * number, number), sampling, max_tokens=20 + number)
        for number, sampling in enumerate(SAMPLINGS)
    ]
    requests = [engine.add(Request(wish.prompt, sampling=wish.sampling, max_tokens=wish.max_tokens)) for wish in wishes]
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        expected = expected_output(wish, CONTEXT)
        assert request.generated == expected.tokens
        assert request.finish_reason == expected.finish_reason
    assert engine.overlap is not None
    assert engine.overlap.launched is None
    engine.check_integrity()
    assert engine.kv_cache.pages.num_free == limits.num_pages


def test_a_step_is_launched_before_the_one_before_is_read() -> None:
    engine = make_engine()
    (request,) = [engine.add(Request(prompt(10), max_tokens=8))]
    queue = engine.runner.device.queue
    assert engine.step() == []
    first = engine.overlap.launched
    assert first is not None
    assert queue.num_done == 0, "nothing was waited for"
    (output,) = engine.step()
    second = engine.overlap.launched
    assert second is not None
    assert second.step.sequences[0].tokens == (UNKNOWN,)
    assert request.generated == [output.token] == expected_output(Wish(prompt(10), Sampling(), 1), CONTEXT).tokens
    assert queue.waiting, "the second step still runs"
    engine.run([request])


def test_a_request_that_surely_ends_is_not_launched_again() -> None:
    engine = make_engine()
    request = engine.add(Request(prompt(10), max_tokens=2))
    sizes = []
    while request.finish_reason is None:
        engine.step()
        sizes.append(engine.overlap.launched is not None)
    assert sizes == [True, True, False]


def test_the_row_of_a_request_that_has_stopped_is_discarded() -> None:
    wish = Wish(prompt(PAGE - 3), Sampling(), 8)
    stop = expected_output(wish, CONTEXT).tokens[4]
    engine = make_engine()
    sequence = engine.sequence()
    request = engine.add(Request(wish.prompt, max_tokens=20, stop_ids=[stop], sequence=sequence))
    others = [engine.add(Request(prompt(5), max_tokens=30))]
    while request.finish_reason is None:
        engine.step()
    launched = engine.overlap.launched
    assert launched is not None
    assert launched.discarded == {request.id}
    assert request.finish_reason == "stop"
    assert sequence.tokens == request.all_token_ids[: sequence.length]
    held, cached = sequence.length, dict(engine.kv_cache.prefix_cache.page_of_hash)
    again = engine.add(Request([*request.all_token_ids, 7], max_tokens=5, sequence=sequence))
    engine.run([again, *others])
    assert again.cached_tokens >= held - 1
    assert cached.items() <= engine.kv_cache.prefix_cache.page_of_hash.items()
    assert again.generated == expected_output(Wish((*request.all_token_ids, 7), Sampling(), 5), CONTEXT).tokens


def test_a_request_that_is_cancelled_in_flight_leaves_nothing() -> None:
    engine = make_engine()
    request = engine.add(Request(prompt(50), max_tokens=20))
    for _ in range(3):
        engine.step()
    assert engine.overlap.launched is not None
    engine.cancel(request)
    assert engine.overlap.launched is None, "an idle engine has no step in flight"
    engine.check_integrity()
    assert engine.kv_cache.pages.num_free == LIMITS.num_pages
    assert engine.step() == []


def test_a_state_survives_a_stop() -> None:
    """The step in flight writes to a copy: a conversation continues from the state after its last token."""
    limits = EngineConfig(CONTEXT, CONTEXT, VOCAB, 64, 6, 40, num_states=12, state_interval=8)
    engine = make_engine(limits, LaunchedStatefulRunner)
    wish = Wish(prompt(20), Sampling(), 8)
    stop = expected_output(wish, CONTEXT).tokens[5]
    sequence = engine.sequence()
    request = engine.add(Request(wish.prompt, max_tokens=20, stop_ids=[stop], sequence=sequence))
    engine.run([request])
    held = sequence.length
    assert held == len(request.all_token_ids) - 1
    again = engine.add(Request([*request.all_token_ids, 3], max_tokens=4, sequence=sequence))
    engine.run([again])
    assert again.cached_tokens == held
    assert again.generated == expected_output(Wish((*request.all_token_ids, 3), Sampling(), 4), CONTEXT).tokens
    engine.check_integrity()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_forced_tokens_discard_the_step_in_flight(sampling: Sampling) -> None:
    engine = make_engine()
    wish = Wish(prompt(12), sampling, 30, form=(17, False))
    request = engine.add(Request(wish.prompt, sampling=sampling, max_tokens=30, constraint=wish.constraint()))
    engine.run([request])
    expected = expected_output(wish, CONTEXT)
    assert request.generated == expected.tokens
    assert request.finish_reason == expected.finish_reason == "stop"


def test_pages_that_run_out_drain_before_a_request_is_preempted() -> None:
    limits = EngineConfig(CONTEXT, CONTEXT, VOCAB, 64, 6, 5)
    engine = make_engine(limits)
    wishes = [Wish(prompt(PAGE - 5, number), Sampling(), 2 * PAGE) for number in range(3)]
    requests = [engine.add(Request(wish.prompt, max_tokens=wish.max_tokens)) for wish in wishes]
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert engine.metrics.preemptions > 0
    assert engine.kv_cache.pages.num_free == limits.num_pages


def test_rows_share_steps_with_launched_ones() -> None:
    engine = make_engine()
    stream = engine.add(Request(prompt(8), max_tokens=40))
    for output in ("logits", "hidden"):
        rows: list[np.ndarray] = []
        text = engine.add(
            Request(prompt(70), output=output, on_rows=lambda chunk, rows=rows: rows.append(chunk.copy()))
        )
        engine.run([text])
        assert (np.concatenate(rows)[-1] == scores_after(cells_of(prompt(70)))).all()
    engine.run([stream])
    assert stream.generated == expected_output(Wish(prompt(8), Sampling(), 40), CONTEXT).tokens


class FailingDevice(Exception):
    """A failure of the device."""


@contextmanager
def failing_waits(engine: Engine) -> Iterator[None]:
    """Let every wait for the device fail."""
    device = engine.runner.device

    def fail() -> None:
        raise FailingDevice

    kept, device.on_wait = device.on_wait, fail
    try:
        yield
    finally:
        device.on_wait = kept


def refuse_long_steps(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a runner's function that has memory for 9 tokens."""

    def run_short(step: Step, *previous: Any) -> Any:
        if step.num_tokens > 9:
            raise MemoryShortage("the device has 3 MB left")
        return run(step, *previous)

    return run_short


@pytest.mark.parametrize("where", ["launch", "wait"])
def test_a_failure_of_the_device_costs_at_most_the_steps_in_flight(where: str) -> None:
    """The tokens are computed again, with the same random numbers."""
    engine = make_engine()
    wishes = [Wish(prompt(9), Sampling(), 25), Wish(prompt(30), Sampling(temperature=1.0, seed=2), 25)]
    requests = [engine.add(Request(each.prompt, sampling=each.sampling, max_tokens=25)) for each in wishes]
    for _ in range(6):
        engine.step()

    def fail(*_: object) -> None:
        raise FailingDevice

    runner = engine.runner
    if where == "launch":
        kept, runner.run = runner.run, fail
    else:
        kept, runner.device.on_wait = runner.device.on_wait, fail
    with pytest.raises(FailingDevice):
        engine.step()
    if where == "launch":
        runner.run = kept
    else:
        runner.device.on_wait = kept
    assert engine.overlap.sampler.num_ahead == {}
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    engine.check_integrity()
    assert engine.kv_cache.pages.num_free == LIMITS.num_pages


@pytest.mark.parametrize("runner_class", [HashedRunner, LaunchedRunner])
def test_a_step_that_runs_out_of_memory_makes_the_next_ones_shorter(
    runner_class: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(LIMITS) if runner_class is LaunchedRunner else Engine(HashedRunner(LIMITS), LIMITS)
    monkeypatch.setattr(engine.runner, "run", refuse_long_steps(engine.runner.run))
    wishes = [Wish(prompt(30 + number, number), sampling, 12) for number, sampling in enumerate(SAMPLINGS)]
    requests = [engine.add(Request(wish.prompt, sampling=wish.sampling, max_tokens=12)) for wish in wishes]
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert engine.scheduler.token_budget == 8
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "64 tokens ran out of memory (the device has 3 MB left): steps have at most 32" in caplog.text


def test_a_single_token_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(LIMITS)

    def refuse(*_: object) -> None:
        raise MemoryShortage("the device has nothing left")

    monkeypatch.setattr(engine.runner, "run", refuse)
    engine.add(Request(prompt(30), max_tokens=12))
    while engine.scheduler.token_budget > 1:
        engine.step()
    with pytest.raises(MemoryShortage):
        engine.step()


def test_outputs_of_a_drained_step_are_returned_when_the_engine_is_idle() -> None:
    engine = make_engine()
    request = engine.add(Request(prompt(10), max_tokens=1))
    assert engine.step() == []
    engine.fork(engine.sequence())
    assert engine.is_idle
    (output,) = engine.step()
    assert (output.request, output.finish_reason) == (request, "length")
    assert engine.step() == []


def test_a_failure_of_a_step_that_a_fork_waits_for_is_rolled_back() -> None:
    engine = make_engine()
    wishes = [Wish(prompt(9), Sampling(), 25), Wish(prompt(30), Sampling(temperature=1.0, seed=2), 25)]
    requests = [engine.add(Request(each.prompt, sampling=each.sampling, max_tokens=25)) for each in wishes]
    for _ in range(6):
        engine.step()
    with failing_waits(engine), pytest.raises(FailingDevice):
        engine.fork(engine.sequence())
    assert engine.sampling_step is None
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert engine.overlap.sampler.num_ahead == {}
    engine.check_integrity()


@pytest.mark.parametrize("error", [MemoryShortage, FailingDevice, KeyboardInterrupt])
def test_a_failure_while_a_step_is_scheduled_ends_no_request(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    wishes = [Wish(prompt(9 + number, number), sampling, 25) for number, sampling in enumerate(SAMPLINGS)]
    requests = [engine.add(Request(each.prompt, sampling=each.sampling, max_tokens=25)) for each in wishes]
    for _ in range(6):
        engine.step()
    schedule = engine.scheduler.next_step

    def schedule_and_fail() -> Step:
        schedule()
        raise error("the device has 3 MB left")

    with monkeypatch.context() as patched:
        patched.setattr(engine.scheduler, "next_step", schedule_and_fail)
        with pytest.raises(error) if error is not MemoryShortage else nullcontext():
            engine.step()
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    engine.check_integrity()


@pytest.mark.parametrize("runner_class", [LaunchedRunner, LaunchedStatefulRunner])
def test_logits_that_run_out_of_memory_end_no_request(runner_class: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of uncertain draws and rare samplers the host fetches the rows, while the next step is in flight."""
    limits = LIMITS if runner_class is LaunchedRunner else replace(LIMITS, num_states=30, state_interval=2)
    engine = make_engine(limits, runner_class)
    device, count = engine.runner.device, itertools.count()
    device.is_doubtful = True
    fetch = device.fetch_rows

    def fetch_or_fail(*arguments: Any) -> np.ndarray:
        if next(count) in (1, 4):
            raise MemoryShortage("the device has 3 MB left")
        return fetch(*arguments)

    monkeypatch.setattr(device, "fetch_rows", fetch_or_fail)
    wishes = [Wish(prompt(9 + number, number), sampling, 25) for number, sampling in enumerate(SAMPLINGS[:5])]
    wishes.append(Wish(prompt(12), Sampling(temperature=1.0, seed=3), 30, form=(9, False)))
    requests = [
        engine.add(
            Request(wish.prompt, sampling=wish.sampling, max_tokens=wish.max_tokens, constraint=wish.constraint())
        )
        for wish in wishes
    ]
    engine.run(requests)
    assert next(count) > 4
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert engine.overlap.sampler.num_ahead == {}


def test_rows_that_cannot_be_read_end_no_request_in_their_step() -> None:
    engine = make_engine()
    wish = Wish(prompt(9), Sampling(temperature=1.0, seed=2), 25)
    stream = engine.add(Request(wish.prompt, sampling=wish.sampling, max_tokens=25))
    for _ in range(4):
        engine.step()
    rows: list[np.ndarray] = []
    text = engine.add(Request(prompt(20), output="logits", on_rows=lambda chunk: add_copy(rows, chunk)))
    engine.step()
    assert not engine.overlap.launched.step.sequences[-1].is_sampled
    device = engine.runner.device
    fetch, device.fetch = device.fetch, refuse_fetch
    engine.step()
    device.fetch = fetch
    engine.run([stream, text])
    assert stream.generated == expected_output(wish, CONTEXT).tokens
    assert (np.concatenate(rows)[-1] == scores_after(cells_of(prompt(20)))).all()


@pytest.mark.parametrize("runner_class", [HashedRunner, LaunchedRunner, LaunchedStatefulRunner])
@pytest.mark.parametrize("where", ["start_export", "import_pages"])
def test_a_conversation_that_cannot_be_copied_is_computed_again(
    runner_class: type, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little memory on the device to offload or to restore makes no step shorter, and ends no request."""
    states = {"num_states": 8, "state_interval": 2} if runner_class is LaunchedStatefulRunner else {}
    limits = replace(LIMITS, num_pages=8, **states)
    runner = runner_class(limits)
    store = OffloadStore(tmp_path, runner, lambda: "model")
    monkeypatch.setattr(store._writer, "submit", run_at_once)  # the stand-in's queue is that of one thread
    sampler = None if runner_class is HashedRunner else DeviceSampler(runner.device, VOCAB)
    engine = Engine(runner, limits, offload_store=store, device_sampler=sampler)

    def refuse(*_: object) -> None:
        raise MemoryShortage("the device has 3 MB left")

    monkeypatch.setattr(runner, where, refuse)
    sequence = engine.sequence()
    first = engine.add(Request(prompt(200), max_tokens=3, sequence=sequence))
    engine.run([first])
    stream = Wish(prompt(9), Sampling(temperature=1.0, seed=4), 40)
    request = engine.add(Request(stream.prompt, sampling=stream.sampling, max_tokens=40))
    for _ in range(3):
        engine.step()
    assert engine.kv_cache.free_pages(7)
    wish = Wish((*first.all_token_ids, 5), Sampling(temperature=1.0, seed=3), 10)
    again = engine.add(Request(wish.prompt, sampling=wish.sampling, max_tokens=10, sequence=sequence))
    engine.run([again, request])
    assert again.generated == expected_output(wish, CONTEXT).tokens
    assert request.generated == expected_output(stream, CONTEXT).tokens
    assert engine.scheduler.token_budget == limits.token_budget
    assert store.counts.lost == 1
    assert "out of memory while" in (store.last_loss or "")
    engine.check_integrity()
    engine.close()


def test_drafts_learn_the_time_of_a_device_that_runs_by_itself() -> None:
    """Speculation needs one step after the other: a step's time is that until its outputs are read."""
    runner, times = LaunchedRunner(LIMITS), list[float]()

    class TimedSpeculation(Speculation):
        def observe_step(self, step: Step, sampled_tokens: Any, seconds: float) -> None:
            times.append(seconds)

    engine = Engine(runner, LIMITS, TimedSpeculation(Guesses(5)), device_sampler=DeviceSampler(runner.device, VOCAB))
    assert engine.overlap is None
    fetch = runner.device.fetch

    def fetch_slowly(handle: Any) -> np.ndarray:
        sleep(0.003)
        return fetch(handle)

    runner.device.fetch = fetch_slowly
    engine.run([engine.add(Request(prompt(9), max_tokens=12))])
    assert times
    assert min(times) >= 0.003


def test_logits_that_run_out_of_memory_end_no_request_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, count = LaunchedRunner(LIMITS), itertools.count()
    engine = Engine(runner, LIMITS, SteadySpeculation(Guesses(5)))
    fetch = runner.device.fetch

    def fetch_or_fail(handle: Any) -> np.ndarray:
        if next(count) in (7, 12):
            raise MemoryShortage("the device has 3 MB left")
        return fetch(handle)

    monkeypatch.setattr(runner.device, "fetch", fetch_or_fail)
    wishes = [Wish(prompt(9 + number, number), sampling, 25) for number, sampling in enumerate(SAMPLINGS)]
    requests = [engine.add(Request(each.prompt, sampling=each.sampling, max_tokens=25)) for each in wishes]
    engine.run(requests)
    assert next(count) > 12
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens


def run_at_once(job: Callable[..., object], *arguments: object) -> None:
    job(*arguments)


def refuse_fetch(handle: Any) -> np.ndarray:
    raise MemoryShortage("the device has 3 MB left")


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_broken_device_does_not_keep_requests_from_ending(end: str) -> None:
    engine = make_engine()
    request = engine.add(Request(prompt(30), sampling=Sampling(temperature=1.0, seed=2)))
    for _ in range(4):
        engine.step()
    with failing_waits(engine):
        if end == "cancel":
            engine.cancel(request)
        else:
            engine.close()
    assert request.finish_reason == "cancelled"
    assert engine.overlap.launched is None
    assert engine.overlap.sampler.num_ahead == {}
    assert engine.kv_cache.pages.num_free == LIMITS.num_pages


def test_the_last_token_does_not_wait_for_a_discarded_step() -> None:
    wish = Wish(prompt(10), Sampling(), 8)
    stop = expected_output(wish, CONTEXT).tokens[4]
    engine = make_engine()
    request = engine.add(Request(wish.prompt, max_tokens=20, stop_ids=[stop]))
    engine.run([request])
    assert request.finish_reason == "stop"
    assert engine.runner.device.queue.waiting, "the step in vain still runs"


@pytest.mark.parametrize("runner_class", [LaunchedRunner, LaunchedStatefulRunner])
def test_tokens_that_the_host_corrects_leave_the_random_numbers_in_order(runner_class: type) -> None:
    limits = LIMITS if runner_class is LaunchedRunner else replace(LIMITS, num_states=30, state_interval=2)
    engine = make_engine(limits, runner_class)
    engine.runner.device.is_doubtful = True
    wishes = [
        Wish(prompt(5 + 17 * number, number), sampling, max_tokens=40 + number)
        for number, sampling in enumerate(SAMPLINGS[:5])
    ]
    requests = [engine.add(Request(wish.prompt, sampling=wish.sampling, max_tokens=wish.max_tokens)) for wish in wishes]
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert engine.overlap.sampler.num_uncertain > 10
    engine.check_integrity()


def test_rows_with_too_many_edits_are_sampled_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sampler, "MAX_EDITS", 8)
    engine = make_engine()
    edited = Sampling(temperature=1.0, repetition_penalty=1.3, seed=4)
    wishes = [Wish(prompt(40, 1), edited, 20), Wish(prompt(9), SAMPLINGS[1], 20)]
    requests = [engine.add(Request(wish.prompt, sampling=wish.sampling, max_tokens=20)) for wish in wishes]
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert engine.overlap.sampler.num_draws >= 19, "the row without edits is drawn on the device"


def test_sampling_that_runs_out_of_memory_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    wishes = [Wish(prompt(5 + 17 * number, number), each, 12) for number, each in enumerate(SAMPLINGS)]
    wishes.append(Wish(prompt(12), Sampling(temperature=1.0, seed=3), 30, form=(9, False)))
    requests = [
        engine.add(
            Request(wish.prompt, sampling=wish.sampling, max_tokens=wish.max_tokens, constraint=wish.constraint())
        )
        for wish in wishes
    ]
    sampler = engine.overlap.sampler
    find_plan, count = sampler._plan, itertools.count()

    def find_plan_or_fail(program: device_sampler.SamplingProgram) -> Plan:
        if next(count) in (3, 6, 9):
            raise MemoryShortage("the device has 3 MB left")
        return find_plan(program)

    monkeypatch.setattr(sampler, "_plan", find_plan_or_fail)
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
    assert sampler.num_ahead == {}


@pytest.mark.parametrize("output", ["logits", "hidden"])
@pytest.mark.parametrize("runner_class", [HashedRunner, LaunchedRunner])
def test_rows_that_run_out_of_memory_are_computed_in_shorter_steps(
    runner_class: type, output: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(LIMITS) if runner_class is LaunchedRunner else Engine(HashedRunner(LIMITS), LIMITS)
    for name in ("run", "embed"):
        monkeypatch.setattr(engine.runner, name, refuse_long_steps(getattr(engine.runner, name)))
    rows: list[np.ndarray] = []
    request = engine.add(Request(prompt(70), output=output, on_rows=lambda chunk: rows.append(chunk.copy())))
    engine.run([request])
    assert request.finish_reason == "stop"
    assert (np.concatenate(rows)[-1] == scores_after(cells_of(prompt(70)))).all()
    assert engine.scheduler.token_budget == 8


@pytest.mark.parametrize("runner_class", [HashedRunner, LaunchedRunner])
def test_streams_take_turns_where_steps_are_shorter_than_the_batch(runner_class: type) -> None:
    engine = make_engine(LIMITS) if runner_class is LaunchedRunner else Engine(HashedRunner(LIMITS), LIMITS)
    requests = [engine.add(Request(prompt(5, number), max_tokens=60)) for number in range(6)]
    while not all(request.num_generated for request in requests):
        engine.step()
    engine.scheduler.token_budget = 4
    before = [request.num_generated for request in requests]
    for _ in range(31):
        engine.step()
    gains = [request.num_generated - begin for request, begin in zip(requests, before, strict=True)]
    assert min(gains) >= 18
    assert max(gains) <= 22
    engine.run(requests)


def test_the_times_of_steps_add_up_to_the_time_of_the_engine() -> None:
    engine = make_engine()
    moments = []

    class Observer:
        def on_add(self, request: Request) -> None: ...
        def on_end(self, request: Request) -> None: ...
        def on_step(self, step: Step, times: Any) -> None:
            moments.append(times)

    engine.observer = Observer()
    engine.runner.device.on_wait = lambda: sleep(0.002)
    requests = [engine.add(Request(prompt(20, number), max_tokens=12)) for number in range(3)]
    rows = engine.add(Request(prompt(50), output="hidden"))
    begin = perf_counter()
    engine.run([*requests, rows])
    assert sum(engine.metrics.step_seconds) <= perf_counter() - begin
    assert all(list(times) == sorted(times) for times in moments)
    assert all(first[-1] <= second[0] for first, second in pairwise(moments))


def test_a_shortage_of_states_evicts_no_idle_sequence() -> None:
    cache = KvCache(10, num_states=1, snapshot_interval=2)
    running = cache.new_sequence()
    cache.acquire(running)
    copies: list[tuple[int, int]] = []
    assert cache.reserve(running, 5, copies)
    cache.extend(running, list(range(5)))
    idle, pages = cache.fork(running), list(running.pages)
    assert not cache.reserve_ahead(running, 6, copies), "the state of the step in flight needs a second slot"
    assert idle.length == 5
    assert copies == []
    assert running.pages == pages
    cache.check_integrity()


@pytest.mark.parametrize("max_rows", [4, 5, 6])
def test_masks_and_log_probabilities_are_padded_beyond_a_small_batch(max_rows: int) -> None:
    limits = replace(LIMITS, token_budget=max_rows, max_batch=max_rows)
    runner = LaunchedRunner(limits)
    engine = Engine(runner, limits, device_sampler=DeviceSampler(runner.device, VOCAB, max_rows))
    sampling = Sampling(temperature=1.0, seed=3, logprobs=2)
    wishes = [Wish(prompt(12, number), sampling, 30, form=(9, False)) for number in range(max_rows)]
    requests = [
        engine.add(Request(wish.prompt, sampling=sampling, max_tokens=30, constraint=wish.constraint()))
        for wish in wishes
    ]
    engine.run(requests)
    for request, wish in zip(requests, wishes, strict=True):
        assert request.generated == expected_output(wish, CONTEXT).tokens
        assert len(request.logprobs) == request.num_generated


def test_logits_of_committed_steps_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the largest arrays of a device: no program keeps its last inputs."""
    engine = make_engine()
    run, logits = engine.runner.run, list[weakref.ref[Any]]()

    def run_and_watch(step: Step, *previous: Any) -> Any:
        output = run(step, *previous)
        logits.append(weakref.ref(output.logits_handle))
        return output

    monkeypatch.setattr(engine.runner, "run", run_and_watch)
    requests = [
        engine.add(Request(prompt(9, number), sampling=sampling, max_tokens=9 + number))
        for number, sampling in enumerate(SAMPLINGS[:4])
    ]
    engine.run(requests)
    engine.runner.device.queue.run_all()
    gc.collect()
    assert len(logits) > 10
    assert not [reference for reference in logits if reference() is not None]
