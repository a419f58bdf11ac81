"""Trials of grammars in a process that is killed when one exceeds its budget."""

import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import BackendError, QueueFull, RequestError
from sporelm.processes.isolated_process import IsolatedProcess, ProcessLimits
from sporelm.text import load_tokenizer
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_matcher import compile_grammar
from sporelm.text.grammar.grammar_trials import GrammarTrials


def bomb(number: int = 40) -> Grammar:
    """A minute of llguidance's time that its own limits do not count."""
    return Grammar(json_schema={"allOf": [{"type": "string", "pattern": f".*a{{{i}}}.*"} for i in range(1, number)]})


BOMB = bomb()


class OrderedTrials(GrammarTrials):
    """Trials that note the order in which they finish: a loaded test thread wakes too late to see it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.finished: list[bytes] = []

    def _finish_job(self, key: bytes, *args: Any) -> None:
        self.finished.append(key)
        super()._finish_job(key, *args)

    def count_before(self, grammar: Grammar) -> int:
        """Return how many trials finished before that of a grammar."""
        return self.finished.index(sha256(grammar.source().encode()).digest())


@pytest.fixture
def process() -> Iterator[IsolatedProcess]:
    child = IsolatedProcess("test")
    yield child
    child.close()


def test_a_grammar_is_tried_before_it_is_compiled_here(process: IsolatedProcess, story: Path) -> None:
    tokenizer = load_tokenizer(story)
    trials = GrammarTrials(tokenizer, process)
    good = Grammar(choice=["yes", "no"])
    trials.check(good)
    assert compile_grammar(tokenizer, good).matcher().words().any()
    with pytest.raises(RequestError, match="cannot be used"):
        trials.check(Grammar(regex="(a"))


def test_a_grammar_bomb_is_stopped_and_remembered(process: IsolatedProcess, story: Path) -> None:
    tokenizer = load_tokenizer(story)
    trials = GrammarTrials(tokenizer, process, 0.3)
    with pytest.raises(RequestError, match=r"takes more than 0\.3 s of CPU time. Make it simpler"):
        trials.check(BOMB)
    trials.check(Grammar(choice=["yes", "no"]))
    pid, began = process.pid, time.process_time()
    for _ in range(20):
        with pytest.raises(RequestError, match="takes more than"):
            trials.check(BOMB)
    assert process.pid == pid, "it was not tried again"
    assert time.process_time() - began < 5


def test_a_remembered_refusal_keeps_no_frames(process: IsolatedProcess, story: Path) -> None:
    trials = GrammarTrials(load_tokenizer(story), process)
    bad = Grammar(regex="[b-a]")
    for _ in range(3):
        with pytest.raises(RequestError, match="cannot be used"):
            trials.check(bad)
    remembered = trials.submit(bad).result()
    assert isinstance(remembered, RequestError)
    assert remembered.__traceback__ is None


def test_trials_at_once_of_one_grammar_are_one(process: IsolatedProcess, story: Path) -> None:
    trials = GrammarTrials(load_tokenizer(story), process)
    grammar = Grammar(choice=["yes", "no"])
    assert len({id(trials.submit(grammar)) for _ in range(5)}) == 1


def test_a_trial_that_could_not_be_made_is_made_again(story: Path) -> None:
    process = IsolatedProcess("test")
    trials = GrammarTrials(load_tokenizer(story), process)
    process.close()
    for _ in range(2):
        with pytest.raises(BackendError, match="was closed"):
            trials.check(Grammar(choice=["yes", "no"]))
    assert not trials._trials


def test_bombs_of_one_tenant_do_not_delay_grammars_of_another(process: IsolatedProcess, story: Path) -> None:
    trials, quick = OrderedTrials(load_tokenizer(story), process, 0.5), Grammar(choice=["yes", "no"])
    bombs = [trials.submit(bomb(40 + number), "a") for number in range(5)]
    result = trials.submit(quick, "b")
    num_finished = len(trials.finished)
    assert result.result() is None
    assert trials.count_before(quick) <= num_finished + 1, "at most the running one comes first"
    for each in bombs:
        assert "takes more than 0.5 s" in str(each.result())


def test_a_grammar_that_waits_among_bombs_is_tried_for_another_tenant(process: IsolatedProcess, story: Path) -> None:
    trials = OrderedTrials(load_tokenizer(story), process, 0.5)
    common = Grammar(choice=["yes", "no"])
    bombs = [trials.submit(bomb(40 + number), "a") for number in range(5)]
    first = trials.submit(common, "a")
    second = trials.submit(common, "b")
    assert first is second
    num_finished = len(trials.finished)
    assert second.result() is None
    assert trials.count_before(common) <= num_finished + 1, "at most the running one comes first"
    assert [each.result() is None for each in bombs] == [False] * 5
    trials.check(common, "c")


def test_a_grammar_that_one_tenant_cannot_queue_is_tried_for_another(process: IsolatedProcess, story: Path) -> None:
    process.limits = ProcessLimits(max_waiting_jobs=2)
    trials = GrammarTrials(load_tokenizer(story), process, 0.5)
    common = Grammar(choice=["yes", "no"])
    running = trials.submit(BOMB, "a")
    while not process.pid or not any(job and job.running() for job in trials._trials.copy().popitem()[1].jobs.values()):
        time.sleep(0.01)
    waiting = trials.submit(bomb(41), "a")
    result = trials.submit(common, "a")
    assert trials.submit(common, "b") is result  # evicts that of a
    assert result.result() is None
    for each in (running, waiting):
        assert isinstance(each.result(), RequestError)
    assert not isinstance(trials.submit(common, "a").result(), QueueFull)
