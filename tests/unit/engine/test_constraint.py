"""Answers that must look like something: masks, forced tokens, ends and failures, over the fake model."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from sporelm.engine import Request, Sampling
from sporelm.engine.constraint import mask_row
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.sampling import Sampler
from sporelm.engine.speculative import Speculation
from sporelm.engine.step import ScheduledSequence, Step
from unit.engine.fake import VOCAB, Oracle, engine, expected, next_token
from unit.engine.test_engine import prompt


class Pattern:
    """Allows, at each place, one of some tokens; None allows everything. A place of one token is forced."""

    def __init__(self, places: Sequence[Sequence[int] | None], fails_at: int | None = None) -> None:
        self.places, self.fails_at, self.at = places, fails_at, 0

    @property
    def failure(self) -> str | None:
        return "too complex" if self.fails_at is not None and self.at >= self.fails_at else None

    @property
    def ended(self) -> bool:
        return self.at == len(self.places)

    def allows(self, token: int) -> bool:
        return token < VOCAB - 5 and bool(self.words()[token // 32] >> (token % 32) & 1)

    def words(self) -> np.ndarray:
        allowed = np.zeros(96, np.bool_)
        if not self.ended and self.failure is None:
            place = self.places[self.at]
            allowed[slice(None, VOCAB - 5) if place is None else list(place)] = True
        return np.packbits(allowed, bitorder="little").view("<i4")

    def accept(self, token: int) -> None:
        assert self.failure or self.places[self.at] is None or token in (self.places[self.at] or ())
        self.at += 1

    def forced(self) -> list[int]:
        found = []
        for place in self.places[self.at :]:
            if place is None or len(place) != 1:
                break
            found.append(place[0])
        return found


def allowed_best(known: list[int], allowed: Sequence[int]) -> int:
    """Return the fake model's token if it is allowed, or else the lowest allowed one."""
    best = next_token(known)
    return best if best in allowed else min(allowed)


PLACES: list[list[int] | None] = [[3, 4], [5], [6], [7], list(range(40)), [9], list(range(90)), [2, 1]]


@pytest.mark.parametrize("guesses", [False, True])
def test_only_what_is_allowed_is_said_and_what_is_forced_costs_no_step(guesses):
    made = engine(Speculation(Oracle(), 16) if guesses else None)
    other = made.add(Request(prompt(20, 3), max_tokens=30))
    request = made.add(Request(prompt(10), max_tokens=100, constraint=Pattern(PLACES)))
    made.run([request, other])
    known = prompt(10)
    for place in PLACES:
        known.append(allowed_best(known, place or range(VOCAB)))
    assert request.context_ids == known
    assert request.finish_reason == "stop"
    asked = [
        scheduled for step in made.runner.steps for scheduled in step.sequences if scheduled.request_id == request.id
    ]
    assert len(asked) == 4 if not guesses else len(asked) <= 4
    made.check_integrity()


def test_where_scores_are_wanted_each_token_has_its_own():
    made = engine()
    sampling = Sampling(logprobs=1)
    request = made.add(Request(prompt(10), max_tokens=100, constraint=Pattern(PLACES), sampling=sampling))
    made.run([request])
    assert len(request.logprobs) == len(request.generated) == len(PLACES)


def test_the_limit_of_tokens_holds_among_forced_ones():
    made = engine()
    request = made.add(Request(prompt(10), max_tokens=3, constraint=Pattern(PLACES)))
    made.run([request])
    assert request.generated[1:] == [5, 6]
    assert request.finish_reason == "length"


def test_a_conversation_holds_what_was_computed():
    made = engine()
    sequence = made.sequence()
    request = made.add(Request(prompt(10), max_tokens=100, constraint=Pattern(PLACES), sequence=sequence))
    made.run([request])
    assert request.context_ids[: sequence.length] == sequence.tokens
    again = made.add(Request([*request.context_ids, 5], max_tokens=4, sequence=sequence))
    made.run([again])
    known = list(again.prompt)
    for _ in range(4):
        known.append(next_token(known))
    assert again.context_ids == known


def test_a_constraint_that_fails_ends_its_request_alone():
    made = engine()
    other = made.add(Request(prompt(20, 3), max_tokens=30))
    bad = made.add(Request(prompt(10), max_tokens=100, constraint=Pattern([None] * 50, fails_at=4)))
    made.run([bad, other])
    assert (bad.finish_reason, bad.error) == ("error", "the grammar: too complex")
    assert other.finish_reason == "length"
    made.check_integrity()


def test_tokens_that_the_grammar_does_not_know_are_impossible():
    made = engine()
    sampling = Sampling(temperature=100.0, seed=1)
    request = made.add(Request(prompt(10), max_tokens=60, constraint=Pattern([None] * 60), sampling=sampling))
    made.run([request])
    assert len(request.generated) == 60
    assert max(request.generated) < VOCAB - 5


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 97, 200])
@pytest.mark.parametrize("bits", [32, 96, 192])
def test_a_mask_of_bits_leaves_what_is_set_and_nothing_past_its_end(vocab, bits):
    random = np.random.default_rng(vocab + bits)
    possible = random.random(bits) < 0.5
    logits = random.standard_normal(vocab).astype(np.float32)
    wanted = [score if token < bits and possible[token] else -np.inf for token, score in enumerate(logits)]
    mask_row(logits, np.packbits(possible, bitorder="little").view("<i4"))
    assert logits.tolist() == wanted


def test_a_mask_of_infinite_scores_makes_no_nan():
    logits = np.array([np.inf, -np.inf, np.inf], np.float32)
    mask_row(logits, np.array([1], np.int32))
    assert logits.tolist() == [np.inf, -np.inf, -np.inf]


def test_a_greedy_answer_asks_for_masks_only_where_the_argmax_is_not_allowed():
    class Counting(Pattern):
        masks = 0

        def allows(self, token: int) -> bool:
            return bool(Pattern.words(self)[token // 32] >> (token % 32) & 1)

        def words(self) -> np.ndarray:
            self.masks += 1
            return Pattern.words(self)

    made = engine()
    free = Counting([None] * 12)
    request = made.add(Request(prompt(10), max_tokens=100, constraint=free))
    made.run([request])
    first = expected(prompt(10), 1)
    assert request.generated[:1] == first if first[0] < VOCAB - 5 else True
    assert free.masks <= sum(token >= VOCAB - 5 for token in expected(prompt(10), 12)) + 1


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, mirostat=2)])
def test_where_no_token_may_follow_the_grammar_is_named(sampling):
    made = engine()
    other = made.add(Request(prompt(20, 3), max_tokens=30))
    bad = made.add(Request(prompt(10), max_tokens=100, constraint=Pattern([None, None, []]), sampling=sampling))
    made.run([bad, other])
    assert (bad.finish_reason, bad.error) == ("error", "the grammar: no token of the model may follow")
    assert len(bad.generated) == 2
    assert other.finish_reason == "length"


def test_ends_that_must_wait_leave_a_grammar_nothing():
    made = engine()
    sampling = Sampling(min_tokens=5)
    bad = made.add(Request(prompt(10), max_tokens=9, constraint=Pattern([None, [7, 8], None]), sampling=sampling,
                           stop_ids=[7, 8]))  # fmt: skip
    made.run([bad])
    assert bad.error == "the grammar: no token of the model may follow"


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_is_drawn_again_keeps_the_distribution_of_what_is_allowed(temperature):
    """The likeliest token is not allowed: drawn first and asked afterwards, the others come as often as they should."""
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    logits[0, :6] = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0]
    step, drawn = Step([ScheduledSequence(1, [0], 0, (0,), 1)], []), Counter[int]()
    for seed in range(4000):
        sampler = Sampler()
        sampler.add(1, Sampling(temperature=temperature, seed=seed), [0], [], VOCAB, Pattern([[1, 2, 3, 4, 5], None]))
        ((token,),) = sampler.sample(ModelOutput(np.zeros(1, np.int32), logits.copy()), step).tokens
        drawn[token] += 1
    assert drawn.keys() <= {1, 2, 3, 4, 5}
    weights = np.exp(logits[0, 1:6].astype(np.float64) / temperature)
    wanted = 4000 * weights / weights.sum()
    found = np.array([drawn[token] for token in range(1, 6)])
    assert ((found - wanted) ** 2 / wanted).sum() < 18.5, "chi-square, 4 degrees of freedom: 1 in 1000"


def test_nan_logits_are_not_the_grammars_fault():
    sampler = Sampler()
    sampler.add(1, Sampling(), [1], [], VOCAB, Pattern([None]))
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3] = np.nan
    picked = sampler.sample(
        ModelOutput(np.array([-1], np.int32), logits), Step([ScheduledSequence(1, [1], 0, (0,), 1)], [])
    )
    assert (picked.tokens, picked.failures) == ([[-1]], {})
