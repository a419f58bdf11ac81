"""A context that rolls: what the model is shown, and that nothing else changes."""

import pytest

from sporelm.engine import Engine, Request
from sporelm.engine.request import num_pinned_positions
from sporelm.engine.speculative import NgramDrafter, Speculation
from sporelm.errors import ContextOverflow
from unit.engine import fake
from unit.engine.fake import VOCAB, Oracle, engine, next_token
from unit.engine.test_engine import prompt
from unit.engine.test_offload import engine_at

ROOM = 256  # of the fake engine; its first quarter is a page


def rolled(text: list[int], room: int = ROOM) -> list[int]:
    """Return a rolling context: as long as a text is too long, a half is dropped after the first quarter."""
    left = list(text)
    while len(left) > room:
        del left[room // 4 : room // 4 + max(1, room // 2)]
    return left


def continued(ids: list[int], count: int, room: int = ROOM) -> list[int]:
    text = list(ids)
    for _ in range(count):
        text.append(next_token(rolled(text, room)))
    return text[len(ids) :]


def roll(made: Engine, ids: list[int], count: int, **more: object) -> Request:
    request = made.add(Request(ids, max_tokens=count, roll=True, **more))
    made.run([request])
    made.check_integrity()
    return request


@pytest.mark.parametrize("length", [1, 200, 255, 256, 257, 300, 383, 384, 385, 1000])
def test_a_text_goes_on_past_the_context(length):
    made = engine()
    request = roll(made, prompt(length), 400)
    assert request.generated == continued(prompt(length), 400)
    assert request.finish_reason == "length"
    assert request.prompt == prompt(length)
    assert request.num_generated == 400
    assert request.context_ids == [
        *rolled(request.all_token_ids[:-1]),
        request.all_token_ids[-1],
    ]  # the last token is never shown
    assert len(request.context_ids) == len(request.all_token_ids) - request.num_dropped
    assert request.num_dropped >= len(request.all_token_ids) - 1 - ROOM
    assert made.kv_cache.pages.num_free == made.limits.num_pages


def test_it_is_what_a_fresh_engine_says_to_what_is_left():
    request = roll(engine(), prompt(200), 300)
    place = len(request.all_token_ids) - request.num_dropped - 40
    left = request.context_ids[:place]
    made = engine()
    fresh = made.add(Request(left, max_tokens=40))
    made.run([fresh])
    assert fresh.generated == request.all_token_ids[-40:]


def test_only_the_part_after_the_first_quarter_is_computed_again():
    made = engine(token_budget=512)
    roll(made, prompt(250), 20)
    starts = [(step.sequences[0].position, len(step.sequences[0].tokens)) for step in made.runner.steps]
    again = [(position, count) for position, count in starts[1:] if count > 1]
    assert again == [(64, 257 - 128 - 64)]


def test_unasked_it_ends_and_a_prompt_is_refused():
    made = engine()
    request = made.add(Request(prompt(250), max_tokens=50))
    made.run([request])
    assert (request.finish_reason, request.num_generated, request.num_dropped) == ("length", 7, 0)
    with pytest.raises(ContextOverflow):
        made.add(Request(prompt(257), max_tokens=1))


@pytest.mark.parametrize("room", [1, 2, 3, 7, 64, 100])
def test_tiny_contexts_roll_too(room):
    made = engine(max_context=room)
    assert roll(made, prompt(5), 150).generated == continued(prompt(5), 150, room)
    assert num_pinned_positions(room) == room // 4


@pytest.mark.parametrize(("room", "first"), [(256, 64), (300, 64), (511, 64), (512, 128), (8192, 2048)])
def test_the_first_quarter_is_whole_pages(room, first):
    assert num_pinned_positions(room) == first


@pytest.mark.parametrize("speculation", [Oracle(0), Oracle(4), NgramDrafter()], ids=["right", "some wrong", "ngram"])
def test_guesses_change_nothing(speculation):
    made = engine(Speculation(speculation, 16))
    assert roll(made, prompt(240), 300).generated == continued(prompt(240), 300)


def test_a_stop_id_ends_it_at_the_very_place():
    text = continued(prompt(240), 300)
    stop = text[250]
    request = roll(engine(), prompt(240), 300, stop_ids=[stop])
    assert request.generated == text[: text.index(stop) + 1]


def test_many_roll_together_and_are_preempted():
    made = engine(num_pages=8, max_batch=4)
    requests = [made.add(Request(prompt(60 * n, n), max_tokens=200, roll=True)) for n in range(1, 6)]
    made.run(requests)
    for request in requests:
        assert request.generated == continued(request.prompt, 200)
    assert made.metrics.preemptions > 0
    made.check_integrity()


def test_others_find_no_wrong_pages_and_share_the_right_ones():
    made = engine()
    first = roll(made, prompt(300), 100)
    again = roll(made, prompt(300), 100)
    assert again.generated == first.generated
    assert again.cached_tokens >= 128
    plain = made.add(Request(prompt(300)[:250], max_tokens=5))
    made.run([plain])
    assert plain.generated == continued(prompt(300)[:250], 5)
    assert plain.cached_tokens == 64  # what a rolling text holds of it is its first quarter


def test_children_share_a_prompt_that_was_too_long():
    made = engine()
    first = made.add(Request(prompt(300), max_tokens=80, roll=True))
    others = [made.add(Request(prompt(300), max_tokens=80, roll=True, parent=first)) for _ in range(2)]
    made.run([first, *others])
    assert {tuple(request.generated) for request in (first, *others)} == {tuple(continued(prompt(300), 80))}
    assert all(other.cached_tokens == first.num_context_prompt - 1 for other in others)


def test_the_next_turn_finds_what_the_last_one_held(tmp_path):
    made = engine_at(tmp_path)
    sequence = made.sequence()
    text = roll(made, prompt(200), 100, sequence=sequence).all_token_ids
    for turn in range(6):
        before = sequence.length
        asked = roll(made, [*text, *prompt(20, turn)], 20, sequence=sequence)
        assert asked.generated == continued(asked.prompt, 20)
        # Unless it rolled again, in this prompt, all is there.
        assert asked.cached_tokens in (before, num_pinned_positions(ROOM))
        assert asked.num_context_prompt == len(rolled(asked.prompt))
        text = asked.all_token_ids
    made.close()


@pytest.mark.parametrize("company", [False, True], ids=["alone", "in company"])
def test_a_text_that_repeats_itself_rolls_onto_itself(company, monkeypatch):
    monkeypatch.setattr(fake, "next_token", lambda history, vocab=VOCAB: 5 if 7 not in history else 8)
    made = engine()
    # It is first in the step: a part without tokens would take the scores of the last row, which is another's.
    request = made.add(Request([5] * 200, max_tokens=400, roll=True))
    others = [made.add(Request([7] * 20, max_tokens=200))] if company else []
    made.run([request, *others])
    made.check_integrity()
    assert request.generated == [5] * 400
    assert [other.generated for other in others] == [[8] * 200] * company
