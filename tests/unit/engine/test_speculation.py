"""Guesses change how soon tokens come, never which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.engine import Request, Sampling
from sporelm.engine.sampling.sampler import accepted_prefix
from sporelm.engine.speculative import DraftTokens, NgramDrafter, Speculation
from sporelm.engine.speculative.speculation import FIRST_PAUSE, MAX_DRAFT_TOKENS, select_drafts
from sporelm.engine.step import ScheduledSequence, Step
from unit.engine.fake import Oracle, engine, expected
from unit.engine.test_engine import prompt

pytestmark = pytest.mark.usefixtures("clock")

SAMPLED = Sampling(temperature=30.0, seed=3, repetition_penalty=1.2, logprobs=1)


@pytest.mark.parametrize("wrong", [0, 2, 3, 7])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_guesses_right_or_wrong_leave_the_tokens_as_they_are(wrong, sampling):
    plain, made = engine(), engine(Speculation(Oracle(wrong), 16))
    wanted, found = (
        [each.add(Request(prompt(length), max_tokens=60, sampling=sampling)) for length in (5, 70)]
        for each in (plain, made)
    )
    plain.run(wanted)
    made.run(found)
    assert [request.context_ids for request in found] == [request.context_ids for request in wanted]
    assert [request.logprobs for request in found] == [request.logprobs for request in wanted]
    assert made.scheduler.speculation.num_draft_tokens > 0
    made.check_integrity()


def test_right_guesses_save_steps():
    made = engine(Speculation(Oracle(), 16))
    request = made.add(Request(prompt(10), max_tokens=100))
    made.run([request])
    assert request.generated == expected(request.prompt, 100)
    assert len(made.runner.steps) < 30
    assert made.speculation.num_accepted_tokens == made.speculation.num_draft_tokens > 70
    assert made.speculation.drafter.ended == [request.id]
    assert not made.speculation.backoffs


def test_a_full_batch_and_waiting_prompts_leave_no_room_for_guesses():
    made = engine(Speculation(Oracle(), 4), max_batch=4)
    requests = [made.add(Request(prompt(10, seed), max_tokens=20)) for seed in range(4)]
    made.run(requests)
    assert made.speculation.num_draft_tokens == 0
    alone = made.add(Request(prompt(10), max_tokens=20))
    made.run([alone])
    assert made.speculation.num_draft_tokens > 0
    decoding = [
        step
        for step in made.runner.steps
        if all(scheduled.num_outputs == len(scheduled.tokens) for scheduled in step.sequences)
    ]
    assert {step.num_tokens for step in decoding} >= {4}
    assert max(step.num_tokens for step in decoding) == 4


def test_an_answer_ends_where_it_would_have():
    start = prompt(12)
    said = expected(start, 40)
    for stop in (said[7], said[20]):
        made = engine(Speculation(Oracle(), 16))
        request = made.add(Request(start, max_tokens=40, stop_ids=[stop]))
        made.run([request])
        assert request.generated == said[: said.index(stop) + 1]
        assert request.finish_reason == "stop"
    made = engine(Speculation(Oracle(), 16), max_context=64, num_pages=4)
    full = made.add(Request(prompt(50), max_tokens=100))
    made.run([full])
    assert full.generated == expected(prompt(50), 15)
    made.check_integrity()


def test_a_conversation_keeps_only_what_was_right():
    made = engine(Speculation(Oracle(3), 16))
    sequence = made.sequence()
    first = made.add(Request(prompt(20), max_tokens=30, sequence=sequence))
    made.run([first])
    assert sequence.tokens == first.context_ids[:-1]
    second = made.add(Request([*first.context_ids, 1, 2], max_tokens=10, sequence=sequence))
    made.run([second])
    assert second.cached_tokens == 49
    assert second.generated == expected(second.prompt, 10)


def test_requests_whose_guesses_do_not_pay_are_left_alone():
    made = engine(Speculation(Oracle(1), 16))
    request = made.add(Request(prompt(10), max_tokens=200))
    made.run([request])
    assert request.generated == expected(request.prompt, 200)
    assert made.speculation.num_accepted_tokens == 0
    tried = sum(step.num_tokens > 1 for step in made.runner.steps[1:])
    assert tried < 30


def test_pauses_follow_what_was_right():
    speculation = Speculation(Oracle(), 16)
    request = Request([1, 2, 3], max_tokens=100)
    request.id = 1
    assert not speculation.propose([request], 1000)  # before it is known what a step takes
    speculation.observe_step(Step([ScheduledSequence(1, [0], 5, (0,), 1)], []), [[0]], 1.0)
    assert len(speculation.propose([request], 1000)[1]) > 4
    habit = speculation.backoffs[1]

    def happened(drafted: int, right: int, seconds: float = 1.0) -> None:
        speculation._proposed_ids, speculation._proposing_seconds = [1], 0.0
        speculation.observe_step(
            Step([ScheduledSequence(1, [0] * (drafted + 1), 5, (0,), drafted + 1)], []), [[0] * (right + 1)], seconds
        )

    for _ in range(40):
        happened(15, 15)
    assert len(speculation.propose([request], 1000)[1]) == MAX_DRAFT_TOKENS  # rows cost nothing
    for _ in range(40):
        if not habit.pause:
            happened(4, 0, 3.0)
    assert habit.pause == FIRST_PAUSE
    assert [len(speculation.propose([request], 1000)) for _ in range(FIRST_PAUSE)] == [0] * FIRST_PAUSE
    for _ in range(40):
        if not habit.pause:
            happened(4, 0, 3.0)
    assert habit.pause == 2 * FIRST_PAUSE
    habit.pause = 0
    assert len(speculation.propose([request], 1000)[1]) < 8  # rows cost much


def test_the_likeliest_tokens_are_taken_while_they_are_worth_their_rows():
    sure, doubtful = DraftTokens([1, 2, 3], [0.9, 0.9, 0.9]), DraftTokens([7, 8], [0.5, 0.1])
    assert select_drafts({1: sure, 2: doubtful}, 2, 10, 0.01) == {1: [1, 2, 3], 2: [7, 8]}
    assert select_drafts({1: sure, 2: doubtful}, 2, 10, 0.2) == {1: [1, 2, 3]}
    assert select_drafts({1: sure, 2: doubtful}, 2, 4, 0.01) == {1: [1, 2, 3], 2: [7]}
    assert select_drafts({1: sure, 2: doubtful}, 2, 2, 0.01) == {1: [1, 2]}
    assert select_drafts({2: doubtful}, 1, 10, 0.6) == {}


def test_a_guess_from_the_text_is_what_followed_the_longest_match():
    drafter = NgramDrafter()

    def guess(known: list[int], limit: int = 3) -> list[int]:
        request = Request(known)
        request.id = 7
        found = drafter.propose(request, limit)
        drafter.end(request)
        return found.tokens

    assert guess([1, 2, 3, 4, 5]) == []
    assert guess([1, 2, 3, 4, 9, 1, 2]) == [3, 4, 9]
    assert guess([8, 1, 2, 3, 4, 50, 60, 7, 3, 4, 70, 1, 2, 3, 4]) == [50, 60, 7]  # four that agree before two
    assert guess([1, 2, 3, 1, 2, 4, 1, 2]) == [4, 1, 2]  # the latest of them
    assert guess([5, 5, 5, 5]) == [5, 5, 5]
    assert guess([7, 1, 2, 3, 1, 2], 8) == [3, 1, 2, 3, 1, 2, 3, 1]  # what repeats goes on repeating


def test_a_guess_grows_with_the_text():
    drafter = NgramDrafter()
    request = Request([1, 2, 3])
    assert drafter.propose(request, 4).tokens == []
    request.context_ids += [1, 2]
    assert drafter.propose(request, 4).tokens == [3, 1, 2, 3]
    request.context_ids += [9, 1, 2]
    assert drafter.propose(request, 4).tokens == [9, 1, 2, 9]


def test_what_came_of_guesses_says_how_likely_the_next_ones_are():
    drafter = NgramDrafter()
    request = Request([1, 2, 3, 9, 8, 7, 1, 2])
    (first, *_) = drafter.propose(request, 3).probabilities
    request.context_ids += [3, 9, 8]  # three that were right
    later = drafter.propose(request, 8).probabilities
    assert later == sorted(later)  # the more tokens agree, the likelier the next
    request.context_ids += [5, 5, 1, 2]  # and some that were not
    (second, *_) = drafter.propose(request, 3).probabilities
    assert second > first
    request.context_ids += [4, 1, 2]
    assert drafter.propose(request, 3).probabilities[0] < second


def test_a_text_that_was_cut_is_read_again():
    drafter = NgramDrafter()
    request = Request([1, 2, 3, 4, 5, 6, 1, 2])
    assert drafter.propose(request, 2).tokens == [3, 4]
    request.context_ids = [4, 5, 9, 4, 5]
    assert drafter.propose(request, 2).tokens == [9, 4]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.lists(st.integers(0, 2), max_size=7))
def test_what_is_said_is_guessed_up_to_its_last_token(tokens, guesses):
    guesses = guesses[: len(tokens) - 1]
    tokens = tokens[: len(guesses) + 1]
    said = accepted_prefix(tokens, guesses)
    assert said == tokens[: len(said)]
    assert said[:-1] == guesses[: len(said) - 1]
    assert len(said) == len(tokens) or said[-1] != guesses[len(said) - 1]
