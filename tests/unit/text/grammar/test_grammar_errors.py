"""Errors of llguidance in words."""

from pathlib import Path

import pytest

from sporelm.errors import RequestError
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_errors import (
    MAX_CHARACTERS,
    NO_TOKEN,
    describe_missing_token,
    translate_llguidance_error,
)
from sporelm.text.grammar.grammar_matcher import CompiledGrammar
from sporelm.text.tokenizers.load_tokenizer import load_tokenizer
from sporelm.text.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(story: Path) -> Tokenizer:
    return load_tokenizer(story)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(a", 'unclosed group (in the expression "(a")'),
        ("x(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("a{2,1}", "invalid repetition count range, the start must be <= the end"),
    ],
)
def test_a_wrong_expression_is_told_by_what_is_wrong(tokenizer: Tokenizer, pattern: str, told: str) -> None:
    with pytest.raises(RequestError) as caught:
        CompiledGrammar(tokenizer, Grammar(regex=pattern))
    assert told in str(caught.value)
    assert "regex parse error" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["漢", "ab漢", "once {"])
def test_a_character_that_no_token_has_is_named(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        CompiledGrammar(tokenizer, Grammar(choice=[text]))
    assert f"the model's vocabulary has no token for {text[-1]!r}" in str(caught.value)
    assert "use a model that can write it" in str(caught.value)


def test_in_the_middle_of_an_answer_it_is_told_too(tokenizer: Tokenizer) -> None:
    matcher = CompiledGrammar(tokenizer, Grammar(regex="[a-b]漢")).matcher()
    (a,) = (token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"a")
    matcher.accept(a)
    matcher.words()
    assert matcher.failure is not None
    assert "no token for what must come next" in matcher.failure


def test_lines_are_short_and_one() -> None:
    parser = (
        "Parser Error: token \" \" doesn't satisfy the grammar; forced bytes: got '{'; applying ' '\n<non-verbose/>"
    )
    assert "no token for '{'" in translate_llguidance_error(parser)
    assert translate_llguidance_error(NO_TOKEN + "\n<non-verbose/>") == translate_llguidance_error(NO_TOKEN)
    assert len(translate_llguidance_error("x" * 1000)) == MAX_CHARACTERS
    assert translate_llguidance_error(" \n") == "unknown reason"


def test_bytes_of_a_character_may_be_tokens() -> None:
    pieces = [bytes([byte]) for byte in "漢".encode()]
    assert "'{'" in describe_missing_token("漢{".encode(), pieces)
    assert "'漢'" in describe_missing_token("漢{".encode(), pieces[:2])
    assert describe_missing_token(b"", pieces) == translate_llguidance_error(NO_TOKEN)
