"""A full context that rolls, with a real model: what comes is what a fresh model says to what is left."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from available import BACKENDS, open_available
from sporelm import LLM
from sporelm.errors import ContextOverflow
from system.processes import Spore
from system.test_generation_chat import GREEDY, say

CONTEXT = 64
ROLL = replace(GREEDY, max_tokens=90, ignore_eos=True, roll=True)
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


@pytest.fixture(params=BACKENDS)
def llm(request: pytest.FixtureRequest, talker: Path) -> Iterator[LLM]:
    open_available(request.param).close()
    with LLM(talker, backend=request.param, threads=1, max_context=CONTEXT, max_batch=2) as made:
        yield made
        made.engine.check_integrity()


def test_it_equals_a_fresh_model_that_is_given_what_is_left(llm: LLM) -> None:
    rolled = llm.generate(STORY, ROLL)[0]
    assert (rolled.finish_reason, len(rolled.token_ids)) == ("length", 90)
    assert rolled.dropped_tokens > 0
    text = rolled.prompt_token_ids + rolled.token_ids
    for cut in range(CONTEXT + 1, len(text)):
        left = [*text[: CONTEXT // 4], *text[CONTEXT // 4 + -((CONTEXT - cut) // (CONTEXT // 2)) * CONTEXT // 2 : cut]]
        if cut % 7 == 0:
            fresh = llm.generate([left], replace(GREEDY, max_tokens=1, salt=str(cut)))[0]
            assert fresh.token_ids == text[cut : cut + 1]
    pair = llm.generate([STORY, STORY[:30]], [ROLL, ROLL])
    assert pair[0].token_ids == rolled.token_ids
    plain = llm.generate(STORY, replace(ROLL, roll=False))[0]
    assert (plain.finish_reason, plain.dropped_tokens) == ("length", 0)
    assert plain.token_ids == rolled.token_ids[: len(plain.token_ids)]


def test_a_conversation_goes_on_past_the_context(llm: LLM) -> None:
    talk, turn = llm.conversation(), replace(GREEDY, roll=True)
    said = [say(talk, text, turn) for text in [STORY, STORY, "Then Ben ran home", "The end"]]
    assert [len(each.prompt_token_ids) > CONTEXT for each in said] == [False, False, False, True]
    assert said[2].dropped_tokens == CONTEXT // 2  # in the answer
    for each in said[3:]:
        shown = each.cached_tokens + each.computed_tokens
        assert shown <= CONTEXT
        assert (len(each.prompt_token_ids) - shown) in (CONTEXT // 2, CONTEXT)
        assert each.dropped_tokens >= len(each.prompt_token_ids) - shown
    with pytest.raises(ContextOverflow):
        talk.ask("More", GREEDY)
    talk.close()


def test_run_says_what_was_left_out(spore: Spore, talker: Path) -> None:
    words = ("run", talker, "-p", STORY, "--max-context", CONTEXT, "-n", 80, "--temp", 0, "--ignore-eos")
    done = spore(*words, "--roll")
    assert "tokens dropped | seed" in done.stderr
    found = json.loads(spore(*words, "--roll", "--json").stdout)
    assert (found["dropped_tokens"], len(found["token_ids"])) == (CONTEXT // 2, 80)
    assert json.loads(spore(*words, "--json").stdout)["dropped_tokens"] == 0
