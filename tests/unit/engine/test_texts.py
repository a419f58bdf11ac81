"""Texts of which every position's row is wanted: in steps of their own, between which others' steps run."""

from collections.abc import Generator

import numpy as np
import pytest

from sporelm.engine import Engine, Request
from sporelm.engine.kv.session_folder import SessionFolder
from sporelm.errors import MemoryShortage, RequestError
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt, rows_of

TEXT = prompt(200, 7)


class Rows:
    """A text that is computed, and what was taken of it."""

    def __init__(self, made: Engine, ids: list[int] = TEXT) -> None:
        self.chunks: list[np.ndarray] = []
        self.steps: Generator[bool, None, None] = made.logits(ids, lambda chunk: self.chunks.append(chunk.copy()))

    @property
    def whole(self) -> np.ndarray:
        return np.concatenate(self.chunks)


def assert_nothing_is_held(made: Engine) -> None:
    made.check_integrity()
    assert made.store.pool.num_free == made.limits.num_pages
    assert not made.store.sequences
    assert not made.scheduler.texts


def test_requests_go_on_between_two_steps_of_a_text():
    alone = rows_of(engine(), TEXT)
    made = engine(prefill_tokens=16)
    request = made.add(Request(prompt(10), max_tokens=40))
    rows = Rows(made)
    made.step()
    for _ in rows.steps:
        made.step()
    assert np.array_equal(rows.whole, alone)
    assert [len(chunk) for chunk in rows.chunks] == [16] * 12 + [8]  # short ones: somebody waits for the next token
    assert request.num_generated == 13
    made.run([request])
    assert request.generated == expected(request.prompt, 40)
    assert_nothing_is_held(made)


def test_a_text_takes_whole_steps_where_nobody_waits_for_tokens():
    made = engine(prefill_tokens=16)
    rows = Rows(made)
    assert sum(rows.steps) == 4
    assert [len(chunk) for chunk in rows.chunks] == [48] * 4 + [8]


def test_a_text_that_is_left_gives_its_pages_back():
    made = engine()
    rows = Rows(made)
    next(rows.steps)
    assert made.store.pool.num_free < made.limits.num_pages
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


def test_nobody_finds_what_was_computed_for_a_text():
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
        made.store.dormitory = SessionFolder(tmp_path, made.runner, lambda: "model")
    rows = Rows(made)
    for _ in range(3):
        next(rows.steps)
    request = made.add(Request(prompt(130, 3), max_tokens=5))
    made.run([request])
    assert request.generated == expected(request.prompt, 5)
    done = len(made.runner.steps)
    assert sum(rows.steps) == (1 if sleeps else 4)
    assert np.array_equal(rows.whole, alone)
    first = made.runner.steps[done].parts[0].position
    assert first == (144 if sleeps else 0)
    assert_nothing_is_held(made)
    made.close()


def test_a_text_whose_pages_are_always_needed_is_told():
    made = engine(num_pages=5)
    rows = Rows(made)
    for seed in range(4):
        next(rows.steps)
        next(rows.steps)
        made.run([made.add(Request(prompt(250, seed), max_tokens=1))])
    with pytest.raises(MemoryShortage, match="took the pages of a text 4 times"):
        next(rows.steps)
    assert len(rows.chunks) == 2
    assert_nothing_is_held(made)


def test_a_text_that_finds_no_pages_is_told():
    made = engine(num_pages=4, max_batch=1)
    request = made.add(Request(prompt(150), max_tokens=90))
    for _ in range(30):
        made.step()
    with pytest.raises(MemoryShortage, match="all 4 pages are in use by running requests"):
        rows_of(made, TEXT)
    made.run([request])
    assert request.generated == expected(request.prompt, 90)
    assert_nothing_is_held(made)


def test_room_is_counted_beside_other_texts():
    made = engine(num_pages=8)
    assert made.has_room(10_000)  # alone it would be told
    rows = Rows(made)  # of four pages
    next(rows.steps)
    assert made.has_room(256)
    assert not made.has_room(257)
    request = made.add(Request(prompt(60), max_tokens=2))
    made.step()
    assert not made.has_room(256)
    made.cancel(request)
    rows.steps.close()
    assert made.has_room(10_000)


def test_an_adapter_stays_while_a_text_has_it():
    made = engine()
    made.runner.use = lambda adapted: None
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
