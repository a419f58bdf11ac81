"""Masks of several answers, computed together."""

from pathlib import Path

import numpy as np
import pytest

from sporelm.engine.constraint import collect_words
from sporelm.text.grammar import grammar_matcher
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_matcher import MAX_MASK_THREADS, CompiledGrammar, GrammarMatcher
from sporelm.text.tokenizers.load_tokenizer import load_tokenizer
from sporelm.text.tokenizers.tokenizer import Tokenizer
from unit.engine.hashed import Form


@pytest.fixture(scope="module")
def tokenizer(story: Path) -> Tokenizer:
    return load_tokenizer(story)


def advance(matcher: GrammarMatcher, count: int, random: np.random.Generator) -> GrammarMatcher:
    """Take allowed tokens at random."""
    for _ in range(count):
        allowed = np.flatnonzero(np.unpackbits(matcher.words().view(np.uint8), bitorder="little"))
        if matcher.ended or not len(allowed):
            break
        matcher.accept(int(random.choice(allowed)))
    return matcher


@pytest.mark.parametrize("seed", range(5))
def test_masks_are_those_of_each_answer_alone(tokenizer: Tokenizer, seed: int) -> None:
    random = np.random.default_rng(seed)
    grammars = [
        CompiledGrammar(tokenizer, Grammar(regex="[a-z ]{3,40}")),
        CompiledGrammar(tokenizer, Grammar(choice=["once", "only", "one day"])),
        CompiledGrammar(tokenizer, Grammar(json_schema={"type": "array", "items": {"type": "integer"}})),
    ]
    matchers = [advance(grammars[number % 3].matcher(), number, random) for number in range(9)]
    num_words = -(-tokenizer.vocab_size // 32)
    found = collect_words(matchers, num_words)
    for row, matcher in zip(found, matchers, strict=True):
        assert row.tolist() == matcher.words()[:num_words].tolist()
    assert found.any(axis=1).sum() >= 6


def test_an_answer_that_fails_allows_nothing_and_disturbs_no_other(tokenizer: Tokenizer) -> None:
    good = CompiledGrammar(tokenizer, Grammar(regex="[a-z]+"))
    bad = CompiledGrammar(tokenizer, Grammar(regex="[a-b]漢")).matcher()
    (a,) = (token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"a")
    bad.accept(a)
    matchers = [good.matcher(), bad, good.matcher()]
    found = collect_words(matchers, -(-tokenizer.vocab_size // 32))
    assert bad.failure is not None
    assert not found[1].any()
    assert found[0].any()
    assert found[0].tolist() == found[2].tolist()


def test_constraints_of_other_kinds_are_asked_one_by_one(tokenizer: Tokenizer) -> None:
    form, matcher = Form(5), CompiledGrammar(tokenizer, Grammar(regex="[a-z]+")).matcher()
    found = collect_words([form, matcher], 64)
    assert found[0][: len(form.words())].tolist() == form.words().tolist()
    assert found[1].tolist() == matcher.words()[:64].tolist()
    assert collect_words([], 4).shape == (0, 4)


@pytest.mark.parametrize(("cores", "expected"), [(3, 3), (96, MAX_MASK_THREADS)])
def test_masks_use_the_cores_that_this_process_may_use(
    cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_matcher, "usable_cores", lambda: cores)
    monkeypatch.setattr("llguidance.LLExecutor", lambda num_threads: num_threads)
    assert grammar_matcher._executor.__wrapped__() == expected
