"""Special tokens are cut out in one order, whichever way is quicker for the text at hand."""

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt
from sporelm.text.tokenizers.special_token_splitter import C_SPACES, AddedToken, SpecialTokenSplitter


def split_by_definition(tokens: list[AddedToken], text: str) -> list[str | int]:
    """Split by the definition: the longest token first, wherever it is, then the next in the remaining text."""
    parts: list[str | int] = [text] if text else []
    for token in sorted(tokens, key=lambda token: -len(token.text.encode())):
        found: list[str | int] = []
        for part in parts:
            while isinstance(part, str) and token.text in part:
                before, _, part = part.partition(token.text)
                before = before.rstrip(C_SPACES) if token.lstrip else before
                part = part.lstrip(C_SPACES) if token.rstrip else part
                found += [before, token.token] if before else [token.token]
            found += [part] if part != "" else []
        parts = found
    return parts


FLAGS = st.sampled_from([(False, False)] * 6 + [(True, False), (False, True)])
TEXTS = st.text("<|>a ", min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(
    texts=st.lists(TEXTS, unique=True, max_size=6),
    flags=st.lists(FLAGS, min_size=6),
    text=st.text("<|>a b", max_size=30),
)
def test_the_order_is_that_of_the_definition(texts: list[str], flags: list[tuple[bool, bool]], text: str) -> None:
    tokens = [AddedToken(name, i, *flags[i]) for i, name in enumerate(texts)]
    assert SpecialTokenSplitter(tokens).split(text) == split_by_definition(tokens, text)


@pytest.mark.parametrize("text", ["abcd", "xabcdab", "bcdbcd"])
def test_the_longer_of_two_that_overlap_wins(text: str) -> None:
    tokens = [AddedToken("ab", 1), AddedToken("bcd", 2)]
    assert SpecialTokenSplitter(tokens).split(text) == split_by_definition(tokens, text)


def test_thousands_of_tokens_with_one_beginning() -> None:
    tokens = [AddedToken(f"<unused{i}>", i) for i in range(6000)]
    fragments = SpecialTokenSplitter(tokens)
    assert fragments.split("<ul><unused12><unused5999>") == ["<ul>", 12, 5999]
    assert fragments.split("<" * 50_000) == ["<" * 50_000]
    assert fragments.split("") == []


def test_thousands_of_sizes_do_not_multiply_with_the_text() -> None:
    # Each of the places looked at with each of the sizes would be gigabytes to copy.
    fragments = SpecialTokenSplitter([AddedToken("z" * i + "y", i) for i in range(2, 3000)])
    assert fragments.split("z" * 20_000) == ["z" * 20_000]
    assert fragments.split("z" * 20_000 + "y") == ["z" * 17_001, 2999]


def test_tokens_that_reach_over_the_ends_of_content_are_found_in_linear_time() -> None:
    """Control tokens in content stay text, and so do tokens that would take a part of the template's control tokens."""
    fragments = SpecialTokenSplitter([AddedToken("<|e|>", 0), AddedToken("\n\n", 1), AddedToken(">|", 2)])

    def prompt(turns: int) -> RenderedPrompt:
        spans = [("<|e|>\n", True), ("\nhi<|e|>|\n", False), ("\n<|e|>", True), ("| ", False)]
        return RenderedPrompt.join(spans * turns)

    assert fragments.split_prompt(prompt(1), {0}) == [0, 1, "hi<|e|", 2, 1, 0, "| "]
    began = process_time()
    assert len(fragments.split_prompt(prompt(8000), {0})) == 7 * 8000
    assert process_time() - began < 5  # 0.3 s; a look at every control token for each took a minute
