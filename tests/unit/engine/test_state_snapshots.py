"""Recurrent states beside pages: a state is never that of another text, and hits and misses are reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.engine import Engine, EngineConfig, KvSequence, Request, Step
from sporelm.engine.capacity import bytes_per_state, choose, choose_states, snapshot_interval
from sporelm.engine.kv.offload import OffloadStore
from sporelm.engine.kv.state_allocator import StateAllocator
from sporelm.engine.metrics import classify_miss
from sporelm.engine.speculative import ModelDrafter, Speculation, draft
from sporelm.engine.step import ScheduledSequence
from sporelm.errors import BackendError, MemoryShortage, ModelFileError, RequestError
from sporelm.models.blocks.block_memory import State
from sporelm.ops.paged_attention import PAGE
from unit.engine.hashed import (
    VOCAB,
    Guesses,
    StatefulRunner,
    SteadySpeculation,
    Wish,
    expected_output,
    state_of,
)

CONTEXT = 8 * PAGE
TEXT = np.random.default_rng(5).integers(0, VOCAB, CONTEXT).tolist()
GREEDY = Request([1]).sampling


def limits(**changes: int) -> EngineConfig:
    values = {"token_budget": 100, "max_batch": 4, "num_pages": 40, "num_states": 12, "state_interval": 2, **changes}
    return EngineConfig(max_context=CONTEXT, model_context=CONTEXT, vocab=VOCAB, **values)


def engine(paged: bool = True, speculation: Speculation | None = None, store: Any = None, **changes: int) -> Engine:
    chosen = limits(**changes)
    runner = StatefulRunner(chosen, paged=paged)
    if isinstance(store, Path):
        store = OffloadStore(store, runner, lambda: "model")
    return Engine(runner, chosen, speculation, store)


def expected(prompt: list[int], count: int) -> list[int]:
    return expected_output(Wish(tuple(prompt), GREEDY, count), CONTEXT).tokens


def ask(made: Engine, prompt: list[int], count: int = 3, sequence: KvSequence | None = None) -> Request:
    """The request, once it is answered rightly."""
    request = made.add(Request(prompt, max_tokens=count, sequence=sequence))
    made.run([request])
    assert request.generated == expected(prompt, count)
    made.check_integrity()
    return request


@pytest.fixture(params=[True, False], ids=["hybrid", "states alone"])
def paged(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# ---- the pool


def test_a_known_state_is_found_until_its_room_is_needed() -> None:
    pool = StateAllocator(2)
    first = pool.allocate()
    pool.insert(first, b"a")
    assert not pool.is_writable(first)
    pool.release(first)
    assert (pool.num_free, pool.slot_of_hash) == (2, {b"a": first})
    second = pool.allocate()
    assert second != first
    pool.share(first)
    assert pool.copies == []
    with pytest.raises(BackendError, match=r"no slot is free \(all 2 are held"):
        pool.allocate()
    pool.release(second)
    assert pool.allocate_copy(first) == second
    assert pool.pop_copies() == ((first, second),)
    pool.remove(b"a")
    assert pool.is_writable(first)
    pool.check_integrity([first, second])


def test_the_longest_unused_one_goes_first() -> None:
    pool = StateAllocator(3)
    states = [pool.allocate() for _ in range(3)]
    for state, key in zip(states, (b"a", b"b", b"c"), strict=True):
        pool.insert(state, key)
        pool.release(state)
    pool.share(pool.slot_of_hash[b"a"])
    pool.release(pool.slot_of_hash[b"a"])
    assert pool.allocate() == states[1]
    assert pool.slot_of_hash.keys() == {b"a", b"c"}
    pool.check_integrity([states[1]])


def test_what_cannot_be_is_refused() -> None:
    pool = StateAllocator(1)
    for change in (pool.share, pool.release):
        with pytest.raises(BackendError, match="slot 0 is free"):
            change(0)
    assert not pool.is_writable(-1)
    with pytest.raises(BackendError, match="has a reference count of 0, but 1 holders"):
        pool.check_integrity([0])


# ---- the equalities


@pytest.mark.parametrize("budget", [1, 7, 64, 300])
def test_chunks_and_company_change_nothing(paged: bool, budget: int) -> None:
    made = engine(paged, token_budget=max(budget, 4))
    made.scheduler.prefill_budget.fixed = budget
    prompts = [TEXT[:200], TEXT[3:90], TEXT[:65], TEXT[7:8], TEXT[:64], TEXT[9:140]]
    requests = [made.add(Request(prompt, max_tokens=40)) for prompt in prompts]
    made.run(requests)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.generated == expected(prompt, 40)
    made.check_integrity()
    assert made.kv_cache.states is not None
    assert made.kv_cache.states.num_free == 12


def test_a_prefix_is_taken_up_where_a_state_was_kept(paged: bool) -> None:
    made = engine(paged)
    assert ask(made, TEXT[:200]).cached_tokens == 0
    again = ask(made, TEXT[:200])
    assert (again.cached_tokens, again.cache_miss) == (192, None)
    other = ask(made, [*TEXT[:180], 1, 2, 3])
    assert (other.cached_tokens, other.cache_miss) == (128, None)  # a whole number of intervals
    third = ask(made, [*TEXT[:100], 1, 2, 3])
    assert (third.cached_tokens, third.cache_miss) == (0, "no state kept between tokens 0 and 64")
    assert classify_miss(third.cache_miss) == "no_state"
    assert ask(made, [*TEXT[:100], 1, 2, 3, 4]).cached_tokens == 64  # now it is
    longer = ask(made, [*TEXT[:192], *TEXT[:70]])
    assert (longer.cached_tokens, longer.cache_miss) == (192, "first seen")


def test_where_texts_part_a_state_is_kept_from_the_second_on(paged: bool) -> None:
    made = engine(paged, state_interval=8)
    ask(made, [*TEXT[:200], *([1] * 80)])
    second = ask(made, [*TEXT[:200], *([2] * 80)])
    assert (second.cached_tokens, second.cache_miss) == (0, "no state kept between tokens 0 and 192")
    third = ask(made, [*TEXT[:200], *([3] * 80)])
    assert (third.cached_tokens, third.cache_miss) == (192, "differs at token 200")


def test_of_an_answer_the_newest_state_is_kept(paged: bool) -> None:
    made = engine(paged, state_interval=8)
    first = ask(made, TEXT[:100], 150)
    again = ask(made, [*first.all_token_ids, *TEXT[:9]])
    assert again.cached_tokens == 192
    missed = ask(made, [*first.all_token_ids[:190], *TEXT[:9]])
    assert (missed.cached_tokens, missed.cache_miss) == (64, "no state kept between tokens 64 and 128")


def test_a_salt_finds_nothing_of_another(paged: bool) -> None:
    made = engine(paged)
    ask(made, TEXT[:200])
    request = made.add(Request(TEXT[:200], max_tokens=3, cache_salt="x"))
    made.run([request])
    assert (request.cached_tokens, request.cache_miss) == (0, "first request with this salt")


def test_children_share_what_is_kept_of_their_prompt(paged: bool) -> None:
    made = engine(paged)
    first = made.add(Request(TEXT[:150], max_tokens=9))
    children = [made.add(Request(TEXT[:150], max_tokens=9, parent=first)) for _ in range(3)]
    made.run([first, *children])
    for request in (first, *children):
        assert request.generated == expected(TEXT[:150], 9)
    assert [child.cached_tokens for child in children] == [128] * 3


# ---- sequences


def test_a_conversation_goes_on_where_it_stopped(paged: bool) -> None:
    made = engine(paged)
    talk = made.sequence()
    first = ask(made, TEXT[:90], 20, talk)
    assert ask(made, [*first.all_token_ids, 5, 6], 20, talk).cached_tokens == 109
    made.drop(talk)
    made.check_integrity()


def test_a_fork_and_its_source_go_on_by_themselves(paged: bool) -> None:
    made = engine(paged)
    talk = made.sequence()
    first = ask(made, TEXT[:90], 20, talk)
    child = made.fork(talk)
    assert ask(made, [*first.all_token_ids, 5, 6], 30, child).cached_tokens == 109
    assert ask(made, [*first.all_token_ids, 8], 30, talk).cached_tokens == 109
    assert made.fork(made.sequence()).length == 0
    made.check_integrity()


def test_a_text_that_is_cut_goes_back_to_the_last_state(paged: bool) -> None:
    made = engine(paged)
    talk = made.sequence()
    ask(made, TEXT[:300], 20, talk)
    assert ask(made, TEXT[:299], 5, talk).cached_tokens == 256
    assert ask(made, [*TEXT[:200], 1], 5, talk).cached_tokens == 128
    assert ask(made, [*TEXT[:20], 1], 5, talk).cached_tokens == 0


def test_with_the_page_goes_the_state() -> None:
    made = engine(num_pages=8, max_batch=1)
    ask(made, TEXT[:100])
    assert len(made.kv_cache.states.slot_of_hash) == 1
    ask(made, TEXT[:500])
    assert made.kv_cache.free_pages(8)
    for _ in range(8):
        made.kv_cache.pages.allocate()
    assert not made.kv_cache.states.slot_of_hash


def test_states_that_are_too_few_are_waited_for(paged: bool) -> None:
    for count in (1, 2, 3):
        made = engine(paged, num_states=count)
        talks = [made.sequence() for _ in range(3)]
        requests = [made.add(Request(TEXT[n : n + 100], max_tokens=9, sequence=talk)) for n, talk in enumerate(talks)]
        requests += [made.add(Request(TEXT[n : n + 100], max_tokens=9)) for n in range(3)]
        made.run(requests)
        for request in requests:
            assert request.generated == expected(request.prompt, 9)
        assert made.metrics.preemptions == 0, "none begins before there is a state for it"
        made.check_integrity()


def test_a_state_that_is_known_is_not_written_to() -> None:
    store = engine().kv_cache
    sequence = store.new_sequence()
    assert store.reserve(sequence, 130, [])
    store.extend(sequence, TEXT[:64])
    assert not store.is_writable(sequence, 64), "though there is a page"
    known = sequence.state_slot
    assert store.reserve(sequence, 65, [])
    assert store.states.copies == [(known, sequence.state_slot)]
    assert store.is_writable(sequence, 64)
    store.truncate(sequence, 64)
    assert sequence.state_slot not in (known, -1), "nothing was cut"
    store.extend(sequence, TEXT[64:70])
    store.truncate(sequence, 66)
    assert (sequence.length, sequence.state_slot) == (64, known)


def test_a_window_rolls_over_its_states(paged: bool) -> None:
    made, wish = engine(paged, max_batch=1), Wish(tuple(TEXT[:300]), GREEDY, 400, roll=True)
    request = made.add(Request(wish.prompt, max_tokens=400, roll=True))
    made.run([request])
    assert request.generated == expected_output(wish, CONTEXT).tokens
    assert request.num_dropped == CONTEXT // 2
    made.check_integrity()


def test_a_conversation_that_gives_way_sleeps_with_its_state(paged: bool, tmp_path: Path) -> None:
    made = engine(paged, num_states=2, store=tmp_path)
    talk = made.sequence()
    first = ask(made, TEXT[:150], 20, talk)
    for number in range(3):
        ask(made, TEXT[number : number + 150])
    other = made.sequence()
    ask(made, TEXT[9:150], 5, other)
    ask(made, TEXT[8:150], 5)
    requests = [made.add(Request(TEXT[n : n + 9], max_tokens=9)) for n in range(2)]
    made.run(requests)
    assert talk.length == 0
    assert ask(made, [*first.all_token_ids, 5], 20, talk).cached_tokens == 169
    assert made.kv_cache.offload_store is not None
    made.close()


def test_what_sleeps_wakes_over_a_prefix_that_is_known(paged: bool, tmp_path: Path) -> None:
    made = engine(paged, store=tmp_path)
    talk = made.sequence()
    first = ask(made, TEXT[:300], 15, talk)
    made.kv_cache.evict_until(lambda: False)
    assert (talk.length, made.kv_cache.is_offloaded(talk)) == (0, True)
    assert ask(made, [*first.all_token_ids, 5], 20, talk).cached_tokens == 314
    made.close()


def test_a_beginning_of_what_sleeps_is_computed_again(paged: bool, tmp_path: Path) -> None:
    made = engine(paged, store=tmp_path)
    talk = made.sequence()
    ask(made, TEXT[:300], 20, talk)
    made.kv_cache.evict_until(lambda: False)
    assert made.kv_cache.is_offloaded(talk)
    again = ask(made, TEXT[:299], 5, talk)
    assert again.cached_tokens == 256
    assert not made.kv_cache.is_offloaded(talk)
    made.close()


# ---- files


def test_a_session_comes_back_elsewhere_with_its_state(paged: bool, tmp_path: Path) -> None:
    made, path = engine(paged), tmp_path / "talk.session"
    talk = made.sequence()
    first = ask(made, TEXT[:150], 20, talk)
    made.save_session(talk, path, "model", {"who": "me"})
    other = engine(paged)
    woken, notes = other.load_session(path, "model")
    assert (notes, woken.length) == ({"who": "me"}, 169)
    assert isinstance(other.runner, StatefulRunner)
    assert np.array_equal(other.runner.states[woken.state_slot], state_of(woken.tokens))
    assert ask(other, [*first.all_token_ids, 5], 20, woken).cached_tokens == 169
    assert b'"version": "2"' in path.read_bytes()


def test_an_empty_session_has_no_state(paged: bool, tmp_path: Path) -> None:
    made = engine(paged, num_states=1)
    made.save_session(made.sequence(), tmp_path / "empty", "m", {})
    sequence, _ = made.load_session(tmp_path / "empty", "m")
    ask(made, TEXT[:5], 5)
    ask(made, TEXT[:5], 5, sequence)


def test_a_file_without_the_state_is_refused(tmp_path: Path) -> None:
    made, plain = engine(), tmp_path / "plain"
    made.save_session(made.sequence(), plain, "model", {})
    data = plain.read_bytes()
    plain.write_bytes(data.replace(b'"version": "2"', b'"version": "1"'))
    with pytest.raises(ModelFileError, match="not a session file of version 2"):
        engine().load_session(plain, "model")
    plain.write_bytes(data.replace(b'"states.0"', b'"stales.0"'))
    with pytest.raises(ModelFileError, match=r"states\.0 is not float32 \[0, 3\]"):
        engine().load_session(plain, "model")
    plain.write_bytes(data.replace(b"[0, 3]", b"[0, 4]"))
    with pytest.raises(ModelFileError, match=r"states\.0 is not float32 \[0, 3\]"):
        engine().load_session(plain, "model")


def test_a_full_house_says_what_is_lacking(tmp_path: Path) -> None:
    made = engine(num_states=1)
    made.save_session(talk := made.sequence(), tmp_path / "empty", "model", {})
    ask(made, TEXT[:5], 5, talk)
    made.save_session(talk, tmp_path / "talk", "model", {})
    running = made.add(Request(TEXT[:20], max_tokens=50))
    made.step()
    with pytest.raises(MemoryShortage, match="needs 1 pages, and all 1 recurrent states are in use"):
        made.load_session(tmp_path / "talk", "model")
    text = made.add(Request(TEXT[:9], output="logits"))
    made.step()
    assert not text.num_computed, "it waits for the state"
    made.run([running, text])
    assert text.num_delivered == 9
    assert running.generated == expected(TEXT[:20], 50)
    made.check_integrity()


# ---- texts, guesses, interruptions


def test_a_text_whose_step_is_interrupted_in_anothers_turn_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rows = engine(num_states=1, token_budget=20), list[np.ndarray]()
    text = made.add(Request(TEXT[:90], output="logits", on_rows=lambda chunk: rows.append(chunk.copy())))
    made.step()
    request = made.add(Request(TEXT[:20], max_tokens=3))  # it waits for the state
    run = made.runner.run

    def interrupted(step: Step) -> None:
        run(step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(made.runner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.step()
    made.run([request])
    assert request.generated == expected(TEXT[:20], 3)
    assert text.finish_reason == "stop"
    assert [int(row.argmax()) for row in np.concatenate(rows)[80:]] == [
        expected(TEXT[: place + 1], 1)[0] for place in range(80, 90)
    ]
    made.check_integrity()


def test_texts_have_states_of_their_own(paged: bool) -> None:
    made, rows = engine(paged, token_budget=64), list[np.ndarray]()
    running = made.add(Request(TEXT[:150], max_tokens=60))
    assert made.kv_cache.states is not None
    for _ in made.logits(TEXT[:230], lambda chunk: rows.append(chunk.copy())):
        made.step()
        assert len(made.kv_cache.states.slot_of_hash) <= 2, "no snapshots are kept of a private sequence"
    assert [int(row.argmax()) for row in np.concatenate(rows)[199:]] == [
        expected(TEXT[: place + 1], 1)[0] for place in range(199, 230)
    ]
    made.run([running])
    assert running.generated == expected(TEXT[:150], 60)
    made.check_integrity()


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("wrong", [1000, 3, 2])
def test_guesses_never_decide(paged: bool, wrong: int) -> None:
    made = engine(paged, SteadySpeculation(Guesses(wrong)), state_interval=8)
    requests = [made.add(Request(TEXT[n : n + 90], max_tokens=100)) for n in range(2)]
    steps = 0
    while any(request.finish_reason is None for request in requests):
        made.step()
        made.check_integrity()
        steps += 1
    for request in requests:
        assert request.generated == expected(request.prompt, 100)
    assert sum(request.num_accepted_tokens for request in requests) > 0
    assert steps < 100 or wrong < 1000
    again = ask(made, [*requests[0].all_token_ids, 1])
    assert again.cached_tokens == 128, "the state is kept though tokens come several at a time"


def test_where_there_is_no_state_to_go_back_to_nothing_is_guessed(paged: bool) -> None:
    made = engine(paged, SteadySpeculation(Guesses(2)), num_states=2, max_batch=1)
    talk = made.sequence()
    first = ask(made, TEXT[:90], 20, talk)
    children = [made.fork(talk), made.fork(talk)]
    for number, sequence in enumerate((talk, *children)):
        ask(made, [*first.all_token_ids, number], 40, sequence)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("strange", [False, True])
def test_a_draft_model_may_keep_states_too(paged: bool, strange: bool) -> None:
    small = limits(num_states=8, token_budget=20)
    runner, computed = StatefulRunner(small, paged=paged, strange=strange), list[int]()
    run = runner.run
    runner.run = lambda step: computed.append(step.num_tokens) or run(step)  # type: ignore[method-assign, func-returns-value]
    drafter = ModelDrafter(runner, small, VOCAB)
    made = engine(paged, SteadySpeculation(drafter))
    requests = [made.add(Request(TEXT[n : n + 40], max_tokens=90)) for n in range(2)]
    while any(request.finish_reason is None for request in requests):
        made.step()
        drafter.check_integrity()
    for request in requests:
        assert request.generated == expected(request.prompt, 90)
        assert (request.num_accepted_tokens == request.num_draft_tokens) != strange
        assert request.num_accepted_tokens > 0
    assert sum(computed) < 320, "texts of 260 tokens, and 100 draft tokens; most are accepted"
    assert drafter.kv_cache.states is not None
    assert drafter.kv_cache.states.num_free == 8


def test_a_guess_that_fails_leaves_the_draft_model_no_wrong_state(paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of the second guess fails; the first one is held already, and is then what is said."""
    monkeypatch.setattr(draft, "MIN_PROBABILITY", 0.0)
    small = limits(num_states=8)
    runner = StatefulRunner(small, paged=paged)
    drafter, request = ModelDrafter(runner, small, VOCAB), Request(TEXT[:90], max_tokens=9)
    drafter.read([request], alone=True)
    run, ran = runner.run, list[Step]()

    def failing(step: Step) -> Any:
        ran.append(step)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return run(step)

    runner.run = failing  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        drafter.propose_all([(request, 4)], 4)
    drafter.check_integrity()
    assert drafter.sequences[request.id].length == 90
    said = expected(TEXT[:90], 6)
    for token in said[:2]:
        request.append_token(token, CONTEXT)
    assert drafter.propose_all([(request, 4)], 4)[request.id].tokens == said[2:]


@pytest.mark.parametrize("when", ["before", "copying", "after"])
def test_a_step_that_did_not_end_leaves_no_wrong_state(paged: bool, when: str) -> None:
    made = engine(paged, state_interval=8)
    talk = made.sequence()
    requests = [
        made.add(Request(TEXT[:90], max_tokens=50, sequence=talk)),
        made.add(Request(TEXT[:250], max_tokens=50)),
    ]
    assert isinstance(made.runner, StatefulRunner)
    for _ in range(12):
        made.step()
        made.runner.fail = when
        try:
            made.step()
        except KeyboardInterrupt:
            made.check_integrity()
        made.runner.fail = None
    made.run(requests)
    for request in requests:
        assert request.generated == expected(request.prompt, 50)


def test_a_step_that_was_not_put_together_leaves_no_copies(paged: bool) -> None:
    made = engine(paged)
    talk = made.sequence()
    first = ask(made, TEXT[:100], 28, talk)
    requests = [
        made.add(Request(prompt, max_tokens=9)) for prompt in ([*first.all_token_ids, 1], [*first.all_token_ids, 2])
    ]
    schedule, count = made.scheduler._schedule, [0]

    def interrupted(*given: Any) -> bool:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return schedule(*given)

    made.scheduler._schedule = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.step()
    assert not made.kv_cache.has_state_copies
    made.check_integrity()
    made.run(requests)
    for request in requests:
        assert request.generated == expected(request.prompt, 9)


# ---- plain data


def test_a_step_is_plain_data_with_its_states() -> None:
    step = Step([ScheduledSequence(1, [5], 64, (0, 1), 1, 0, 3)], [(1, 2)], ((4, 3),))
    assert Step.from_json(step.to_json()) == step
    plain = Step([ScheduledSequence(1, [5], 0, (0,), 1)], [])
    assert "state_copies" not in plain.to_json()
    assert Step.from_json(
        {"parts": [{"request": 1, "tokens": [5], "position": 0, "pages": [0], "rows": 1}], "copies": []}
    )


def test_states_are_counted() -> None:
    made = engine()
    ask(made, TEXT[:200])
    samples = made.metrics.snapshot()["sporelm:recurrent_states"]["samples"]
    assert {each["labels"]["use"]: each["value"] for each in samples} == {"held": 0, "kept": 2, "free": 10}


# ---- how many


def test_states_and_pages_share_the_memory() -> None:
    assert choose_states(0, 100, 4, shared=True) == 0
    assert choose_states(1000, None, 4, shared=True) == 16
    assert choose_states(1000, 10_000, 4, shared=True) == 5
    assert choose_states(1000, 10_000, 4, shared=False) == 10
    assert choose_states(1000, 1500, 4, shared=True) == 1
    with pytest.raises(MemoryShortage, match=r"a recurrent state needs 2\.0 MB, 1\.0 MB are available"):
        choose_states(2_000_000, 1_000_000, 4, shared=False)
    assert choose(200, 1000, 4, 1000, 40_000, None, 10_000) == (200, 10)
    assert choose(200, 1000, 4, 1000, None, 15_000, 10_000) == (200, 5)


def test_pages_without_bytes_limit_no_context() -> None:
    assert choose(100_000, 1 << 20, 4, 0, 1000) == (100_000, 7 * 1563)
    with pytest.raises(MemoryShortage, match="the option kv_memory is"):
        choose(100, 1 << 20, 4, 0, 1000, 2000)


def test_states_are_kept_as_far_apart_as_they_are_large() -> None:
    assert [snapshot_interval(size, 1000) for size in (1, 9_500, 10**9)] == [8, 10, 32]
    assert snapshot_interval(1000, 0) == 32


def test_bytes_of_states_are_the_back_ends() -> None:
    class Device:
        def state_bytes(self, layers: Any) -> int:
            return len(layers)

    assert bytes_per_state([State(((2, 3),)), object(), State(((4,),))], Device()) == 2  # type: ignore[arg-type]


def test_limits_with_states_say_how_far_apart() -> None:
    with pytest.raises(RequestError, match="state_interval is 0"):
        limits(state_interval=0)
