"""Text that arrives piece by piece: the detokenizer and the stop strings."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.errors import RequestError
from sporelm.text import Detokenizer, StopMatcher, Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def gpt2(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "data/vocabs/ggml-vocab-gpt-2.gguf")


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_never_half_a_character(gpt2: Tokenizer, text: str) -> None:
    stream = Detokenizer(gpt2)
    given_out = ""
    for token in gpt2.encode(text):
        given_out += stream.push(token)
        assert text.startswith(given_out)
    assert given_out == text
    assert stream.flush() == ""


def test_pieces_of_an_emoji_wait_for_each_other(gpt2: Tokenizer) -> None:
    stream = Detokenizer(gpt2)
    ids = gpt2.encode("é🦙")
    assert len(ids) > 3
    assert [piece for piece in map(stream.push, ids) if piece] == ["é", "🦙"]


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 50256) | st.integers(94, 260), max_size=30), skip=st.booleans())
def test_sum_of_pieces_is_the_whole_text(gpt2: Tokenizer, ids: list[int], skip: bool) -> None:
    stream = Detokenizer(gpt2, skip_special_tokens=skip)
    assert stream.push_all(ids) + stream.flush() == gpt2.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 2047), max_size=30), skip=st.booleans(), continues=st.booleans())
def test_sum_of_pieces_is_the_whole_story(story: Path, ids: list[int], skip: bool, continues: bool) -> None:
    tokenizer = STORY.setdefault("tokenizer", load_tokenizer(story))
    stream = Detokenizer(tokenizer, skip_special_tokens=skip, continues=continues)
    whole = tokenizer.decode(ids, skip_special_tokens=skip, continues=continues)
    assert stream.push_all(ids) + stream.flush() == whole


STORY: dict[str, Tokenizer] = {}


def test_half_a_character_at_the_end(gpt2: Tokenizer) -> None:
    stream = Detokenizer(gpt2)
    first = gpt2.encode("🦙")[0]
    assert stream.push(first) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


def test_an_id_without_a_token_has_no_text(gpt2: Tokenizer) -> None:
    assert Detokenizer(gpt2).push(10**6) == ""  # a padded row of a model's output


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The stop that is complete first, the longest of those; found by trying every end."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


LETTERS = st.text("ab", max_size=4)


@settings(max_examples=400)
@given(pieces=st.lists(LETTERS, max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4))
def test_stops_do_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    whole = "".join(pieces)
    shown, stopped, seen = "", None, ""
    for piece in pieces:
        seen += piece
        text, stopped = matcher.push(piece)
        shown += text
        if stopped is None:  # held back: only what can still become a stop
            held = seen[len(shown) :]
            assert seen.startswith(shown)
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
    shown += matcher.flush()
    assert (shown, stopped) == expected(whole, stops)
    assert matcher.stopped == stopped


def test_after_a_stop_nothing_comes() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("a E") == ("a ", None)
    assert matcher.push("ND b") == ("", "END")
    assert matcher.push("more") == ("", "END")
    assert matcher.flush() == ""


def test_without_stops_text_passes() -> None:
    assert StopMatcher().push("any") == ("any", None)
    assert StopMatcher("xy").push("axyb") == ("a", "xy")


@pytest.mark.parametrize("stops", [[""], ["a", 3], [None]])
def test_stops_that_are_none(stops: list[str]) -> None:
    with pytest.raises(RequestError, match="stop string"):
        StopMatcher(stops)
