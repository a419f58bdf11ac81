"""A real chat model, SmolLM2-135M-Instruct: ten turns, counted and compared with a fresh rendering."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from available import open_available
from sporelm import LLM, SamplingParams

TURNS = [
    "Hi, who are you?",
    "Name a colour.",
    "Why that one?",
    "Tell me a joke.",
    "Another one, with an émoji 😀.",
    "What is 2 + 2?",
    "Count to five.",
    "List three fruits.",
    "What is 'cat' in French?",
    "Goodbye!",
]
GREEDY = SamplingParams(max_tokens=16, temperature=0.0)


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[LLM]:
    open_available("cpu").close()
    with LLM(smollm2, max_context=2048) as made:
        yield made


@pytest.mark.all
def test_ten_turns_compute_only_what_is_new_and_equal_a_fresh_rendering(llm: LLM) -> None:
    conversation = llm.conversation("You are a helpful assistant.")
    held = 0
    for turn in TURNS:
        completion = list(conversation.ask(turn, GREEDY))[-1].completion
        assert completion is not None
        assert completion.cached_tokens == held
        ids = llm.chat_ids(llm.render(conversation.messages[:-1]))
        (fresh,) = llm.generate([ids], replace(GREEDY, salt=f"turn {turn}"))
        assert (fresh.prompt_token_ids, fresh.cached_tokens) == (completion.prompt_token_ids, 0)
        assert (fresh.text, fresh.token_ids) == (completion.text, completion.token_ids)
        held = len(completion.prompt_token_ids) + len(completion.token_ids) - 1
    conversation.close()
    llm.engine.check_integrity()


@pytest.mark.all
def test_chunks_and_threads_leave_every_bit_as_it_is(llm: LLM, smollm2: Path) -> None:
    ids = llm.tokenizer.encode("The spores of ferns are carried by the wind, and where they fall " * 8)
    whole = llm.logits(ids)
    with LLM(smollm2, max_context=2048, threads=1, token_budget=23) as small:
        np.testing.assert_array_equal(small.logits(ids), whole)


@pytest.mark.all
def test_eight_answers_together_are_those_given_alone(llm: LLM) -> None:
    prompts = [f"{turn} Let me tell you:" for turn in TURNS[:8]]
    params = [SamplingParams(max_tokens=12, temperature=temp, seed=9) for temp in (0.0, 0.8, 1.2, 0.0) * 2]
    together = llm.generate(prompts, params)
    alone = [llm.generate(prompt, each)[0] for prompt, each in zip(prompts, params, strict=True)]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
