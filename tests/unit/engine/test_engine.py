"""The engine over a fake model whose tokens are a checksum of the history it finds in its pages."""

import json

import numpy as np
import pytest

from sporelm.engine import Engine, Request, Sampling, Step
from sporelm.engine.capacity import choose
from sporelm.errors import ContextOverflow, MemoryShortage, RequestError
from unit.engine.fake import VOCAB, engine, expected, limits


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def test_one_request_is_continued_greedily():
    made = engine()
    request = made.add(Request(prompt(10), max_tokens=20))
    made.run([request])
    assert request.generated == expected(request.prompt, 20)
    assert request.finish_reason == "length"
    made.check_integrity()
    assert made.kv_cache.pages.num_free == made.limits.num_pages


@pytest.mark.parametrize("budget", [1, 7, 48, 200])
def test_a_prompt_in_chunks_gives_the_same_tokens(budget):
    made = engine(token_budget=budget)
    request = made.add(Request(prompt(150), max_tokens=9))
    made.run([request])
    assert request.generated == expected(request.prompt, 9)


def test_requests_together_give_what_each_gives_alone():
    made = engine(max_batch=3)
    requests = [made.add(Request(prompt(length, length), max_tokens=length)) for length in (1, 63, 64, 65, 100)]
    made.run(requests)
    for request in requests:
        assert request.generated == expected(request.prompt, request.max_tokens)
    assert max(len(step.sequences) for step in made.runner.steps) == 3
    made.check_integrity()


def test_requests_are_served_in_the_order_of_their_arrival():
    made = engine(max_batch=1)
    requests = [made.add(Request(prompt(5, seed), max_tokens=3)) for seed in range(3)]
    ended = []
    while not made.scheduler.is_idle:
        ended += [advance.request for advance in made.step() if advance.finish_reason]
    assert ended == requests


def test_a_stop_id_ends_a_request_and_is_its_last_token():
    start = prompt(12)
    stop = expected(start, 6)[5]
    made = engine()
    request = made.add(Request(start, max_tokens=100, stop_ids=[stop]))
    made.run([request])
    first = expected(start, 6).index(stop)
    assert request.generated == expected(start, 6)[: first + 1]
    assert request.finish_reason == "stop"


def test_cancel_of_a_request_that_was_refused_does_nothing():
    made = engine()
    refused, other = Request(prompt(300)), Request(prompt(3))
    with pytest.raises(ContextOverflow):
        made.add(refused)
    for request in (refused, other):
        made.cancel(request)
        assert request.finish_reason is None
    assert made.add(other).finish_reason is None
    made.run([other])
    assert other.finish_reason == "length"


def test_cancel_frees_the_pages_and_leaves_the_others_alone():
    made = engine(max_batch=2)
    first, second = (made.add(Request(prompt(70, seed), max_tokens=30)) for seed in (1, 2))
    waiting = made.add(Request(prompt(4), max_tokens=2))
    for _ in range(5):
        made.step()
    made.cancel(first)
    made.cancel(first)
    made.cancel(waiting)
    made.run([second])
    assert (first.finish_reason, waiting.finish_reason) == ("cancelled", "cancelled")
    assert second.generated == expected(second.prompt, 30)
    assert made.kv_cache.pages.num_free == made.limits.num_pages


def test_a_sequence_keeps_what_it_computed_for_the_next_request():
    made = engine()
    sequence = made.sequence()
    first = made.add(Request(prompt(90), max_tokens=10, sequence=sequence))
    made.run([first])
    made.runner.steps.clear()
    second = made.add(Request([*first.context_ids, 5, 6, 7], max_tokens=4, sequence=sequence))
    made.run([second])
    assert second.cached_tokens == 99  # the last generated token was never computed
    assert made.runner.steps[0].num_tokens == 4
    assert second.generated == expected(second.prompt, 4)


def test_a_prompt_that_is_held_already_computes_its_last_token_only():
    made = engine()
    sequence = made.sequence()
    made.run([made.add(Request(prompt(80), max_tokens=5, sequence=sequence))])
    again = made.add(Request(prompt(80), max_tokens=5, sequence=sequence))
    made.run([again])
    assert again.cached_tokens == 79
    assert again.generated == expected(again.prompt, 5)


def test_another_prompt_keeps_the_common_prefix_and_releases_the_rest():
    made = engine()
    sequence = made.sequence()
    made.run([made.add(Request(prompt(200), max_tokens=1, sequence=sequence))])
    changed = [*prompt(70), (prompt(71)[70] + 1) % VOCAB]
    request = made.add(Request(changed, max_tokens=3, sequence=sequence))
    made.run([request])
    assert request.cached_tokens == 70
    assert request.generated == expected(changed, 3)
    assert len(sequence.pages) == 2
    made.check_integrity()


def test_a_fork_shares_pages_and_both_go_on_by_themselves():
    made = engine()
    sequence = made.sequence()
    made.run([made.add(Request(prompt(100), max_tokens=1, sequence=sequence))])
    child = made.fork(sequence)
    assert child.pages == sequence.pages
    taken = made.limits.num_pages - made.kv_cache.pages.num_free
    left = made.add(Request([*prompt(100), 1, 2], max_tokens=30, sequence=sequence))
    right = made.add(Request([*prompt(100), 3, 4], max_tokens=30, sequence=child))
    made.run([left, right])
    assert (left.cached_tokens, right.cached_tokens) == (100, 100)
    assert left.generated == expected(left.prompt, 30)
    assert right.generated == expected(right.prompt, 30)
    assert sequence.pages[0] == child.pages[0]
    assert sequence.pages[1] != child.pages[1]
    assert sum(len(step.copies) for step in made.runner.steps) == 1  # the second writer has the page for itself
    assert taken == 2
    made.check_integrity()
    made.drop(sequence)
    made.drop(child)
    assert made.kv_cache.pages.num_free == made.limits.num_pages


def test_idle_sequences_give_way_the_longest_unused_first():
    made = engine(num_pages=6)
    old, new = made.sequence(), made.sequence()
    for sequence in (old, new):
        made.run([made.add(Request(prompt(120, sequence.id), max_tokens=1, sequence=sequence))])
    request = made.add(Request(prompt(200), max_tokens=2))
    made.run([request])
    assert request.generated == expected(request.prompt, 2)
    assert (old.length, new.length) == (0, 120)
    made.check_integrity()


def test_when_pages_run_out_the_youngest_waits_and_its_tokens_stay_the_same():
    made = engine(num_pages=5, max_context=256)
    requests = [made.add(Request(prompt(60, seed), max_tokens=150)) for seed in range(3)]
    made.run(requests)
    for request in requests:
        assert request.generated == expected(request.prompt, 150)
    assert made.kv_cache.pages.num_free == 5
    made.check_integrity()


def test_sampled_tokens_do_not_depend_on_the_company():
    sampling = Sampling(temperature=50.0, seed=7)
    alone, together = engine(), engine()
    single = alone.add(Request(prompt(20), sampling=sampling, max_tokens=25))
    alone.run([single])
    other = together.add(Request(prompt(33), sampling=Sampling(temperature=50.0, seed=8), max_tokens=40))
    same = together.add(Request(prompt(20), sampling=sampling, max_tokens=25))
    together.run([other, same])
    assert single.generated == same.generated != expected(single.prompt, 25)


def test_the_context_is_used_to_its_end_and_not_beyond():
    made = engine(max_context=64, num_pages=4)
    full = made.add(Request(prompt(64), max_tokens=10))
    nearly = made.add(Request(prompt(60), max_tokens=10))
    made.run([full, nearly])
    assert (full.num_generated, full.finish_reason) == (1, "length")
    assert (nearly.num_generated, nearly.finish_reason) == (5, "length")


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers():
    with pytest.raises(ContextOverflow, match=r"300 tokens.*holds 256.*the option max_context.*512"):
        engine().add(Request(prompt(300)))
    with pytest.raises(ContextOverflow, match="cannot raise"):
        engine(model_context=256).add(Request(prompt(300)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Request([]), "no tokens"),
        (lambda: Request([1], max_tokens=0), "max_tokens is 0"),
        (lambda: Request([1], max_tokens=-3), "max_tokens is -3"),
        (lambda: engine().add(Request([1, VOCAB])), "token 97"),
        (lambda: engine().add(Request([-1])), "token -1"),
        (lambda: limits(num_pages=3), "3 pages"),
    ],
)
def test_what_cannot_be_done_is_refused(make, message):
    with pytest.raises(RequestError, match=message):
        make()


def test_a_sequence_serves_one_request_at_a_time():
    made = engine()
    sequence = made.sequence()
    made.add(Request([1, 2], sequence=sequence))
    with pytest.raises(RequestError, match="still answering"):
        made.add(Request([1, 2], sequence=sequence))
    made.step()
    with pytest.raises(RequestError, match="uses this sequence"):
        made.drop(sequence)
    closed = engine()
    with pytest.raises(RequestError, match="was closed"):
        closed.add(Request([1], sequence=sequence))


def test_logits_that_are_not_numbers_end_that_request_with_an_error():
    made = engine()
    request = made.add(Request(prompt(5), max_tokens=9))
    made.step()
    made.runner.broken = True
    (advance,) = made.step()
    assert (advance.token, advance.finish_reason) == (None, "error")
    assert "logits are not numbers at position 5" in (request.error or "")
    made.runner.broken = False
    after = made.add(Request(prompt(5), max_tokens=3))
    made.run([after])
    assert after.generated == expected(after.prompt, 3)


def rows_of(made: Engine, ids: list[int]) -> np.ndarray:
    """The scores of each position of a text: float32 [len(ids), VOCAB]."""
    chunks: list[np.ndarray] = []
    for _ in made.logits(ids, lambda chunk: chunks.append(chunk.copy())):
        made.step()
    return np.concatenate(chunks)


def test_logits_of_every_position_come_in_chunks():
    made = engine(token_budget=32)
    ids = prompt(100)
    rows = rows_of(made, ids)
    assert rows.shape == (100, VOCAB)
    assert rows.argmax(axis=1).tolist() == [expected(ids[: end + 1], 1)[0] for end in range(100)]
    assert made.kv_cache.pages.num_free == made.limits.num_pages
    with pytest.raises(ContextOverflow):
        rows_of(made, prompt(257))


def test_a_step_survives_json_and_replays_to_the_same_tokens():
    made = engine()
    made.run([made.add(Request(prompt(70), max_tokens=3))])
    steps = made.runner.steps
    again = [Step.from_json(json.loads(json.dumps(step.to_json()))) for step in steps]
    assert [step.to_json() for step in again] == [step.to_json() for step in steps]
    replayed = engine()
    assert [int(replayed.runner.run(step).argmax[-1]) for step in again][-3:] == expected(prompt(70), 3)


@pytest.mark.parametrize(
    ("asked", "available", "expected_context", "expected_pages"),
    [
        (None, None, 8192, 128 * 4),
        (None, 10**9, 8192, 128 * 4),
        (100, 10**9, 100, 2 * 4),
        (None, 2 * 1000 * 50, 50 * 64, 50),
        (6400, 2 * 1000 * 130, 6400, 130),
    ],
)
def test_context_and_pages_fit_the_memory(asked, available, expected_context, expected_pages):
    assert choose(asked, 20_000, 1, 1000, available) == (expected_context, expected_pages)


def test_too_little_memory_or_too_long_a_context_is_refused():
    with pytest.raises(MemoryShortage, match=r"6400 positions.*at most 640\b"):
        choose(6400, 8192, 1, 1000, 20_000)
    with pytest.raises(MemoryShortage, match="can be used: close other programs"):
        choose(None, 8192, 1, 1000, 1999)
    with pytest.raises(RequestError, match="this model allows 1 to 512"):
        choose(513, 512, 1, 1000, None)
    with pytest.raises(RequestError, match="the option max_context is 0"):
        choose(0, 512, 1, 1000, None)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_who_had_said_the_last_token_when_a_step_was_interrupted_has_ended(sampling, monkeypatch):
    made = engine()
    request, other = (made.add(Request(prompt(9, seed), max_tokens=3, sampling=sampling)) for seed in (1, 2))
    other.max_tokens = 6

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(made.scheduler, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run([request])
    assert (request.finish_reason, request.num_generated) == ("length", 3)
    assert request.id not in made.scheduler.running
    assert request.id not in made.sampler.states
    made.run([other])
    assert other.finish_reason == ("cancelled" if sampling.temperature else "length")  # a choice had begun
    made.check_integrity()
    assert made.kv_cache.pages.num_free == made.limits.num_pages


def test_a_request_for_whose_choosing_there_is_no_memory_does_not_wait(monkeypatch):
    made = engine()

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(made.sampler, "add", full)
    request = Request(prompt(9), sampling=Sampling(temperature=1.0))
    with pytest.raises(MemoryError):
        made.add(request)
    assert request.finish_reason == "error"
    assert made.scheduler.is_idle
