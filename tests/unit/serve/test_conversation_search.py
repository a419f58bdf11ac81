"""Searches in stored conversations: what they find, and what they need not read."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.serve.conversations.conversation_search import (
    find_hit,
    may_contain,
    query_words,
    shown_branch,
    signature_of,
)
from sporelm.serve.conversations.conversation_store import ConversationStore
from unit.serve.test_conversation_store import A, message, talk


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "kept")


def test_search_requires_every_word(store: ConversationStore) -> None:
    store.create("me", talk("Rivers", messages=[message(A, content="The Danube is LONG, " + "x" * 500)]))
    store.create("me", talk("Mountains"))
    assert [row["title"] for row in store.page("me", "danube long").conversations] == ["Rivers"]
    assert "Danube is LONG" in store.page("me", "danube").conversations[0]["snippet"]
    assert [row["title"] for row in store.page("me", "mount good").conversations] == ["Mountains"]
    assert store.page("me", "danube mountains").total == 0


def find(*messages: str, query: str, shown: set[int] | None = None) -> tuple[int | None, str | None]:
    hit = find_hit(["A title", *messages], query_words(query), shown or set())
    assert hit is not None
    return hit.message, hit.snippet


def test_the_snippet_shows_the_message_with_most_of_the_words() -> None:
    first = "The river rises in the hills. " + "It flows. " * 40
    both = "Nothing yet. " * 30 + "A river and its delta meet the sea. " + "More. " * 40
    index, snippet = find(first, both, query="river delta")
    assert index == 1
    assert snippet is not None
    assert "river and its delta" in snippet
    assert snippet.startswith("…")
    assert snippet.endswith("…")
    assert snippet.index("river") <= 25, "it stands in the visible part of the list's line"
    assert find("first delta", "second river delta", query="delta") == (0, "first delta"), "the earliest, of equal ones"
    assert find("driver", "the river", query="river") == (1, "the river"), "a whole word comes first"
    assert find("a decoder", "decode", query="decode") == (1, "decode")
    assert find("river, then delta", "the river delta", query="river delta")[0] == 1, "the phrase comes first"
    assert find("old delta", "new delta", query="delta", shown={1})[0] == 1, "the branch on the page comes first"


def test_the_snippet_stands_at_the_match_where_case_folding_changes_lengths() -> None:
    text = "ß" * 300 + " the Danube is long " + "ß" * 300
    assert "the Danube is long" in (find(text, query="danube")[1] or "")
    assert "İ" in (find("x" * 200 + " İ " + "y" * 200, query="i̇")[1] or "")


def test_a_snippet_contains_no_markdown() -> None:
    text = "# Rivers\n\n| name | length |\n|---|---|\n| **Danube** | `2,850` km |\n\n- a_b - c"
    assert find(text, query="rivers")[1] == "Rivers name length Danube 2,850 km a_b - c"


def test_a_match_in_the_title_alone_has_no_message(store: ConversationStore) -> None:
    assert find("nothing", query="title") == (None, None)
    store.create("me", talk("Rivers", messages=[message(A, content="water")]))
    row = store.page("me", "rivers").conversations[0]
    assert "snippet" not in row
    assert "hit" not in row
    assert store.page("me", "water").conversations[0]["hit"] == A


def test_the_shown_branch_is_the_way_to_the_current_message() -> None:
    messages = [{"id": "a", "parent": None}, {"id": "b", "parent": "a"}, {"id": "c", "parent": "a"}]
    assert shown_branch({"messages": messages, "current": "c"}) == {0, 2}
    assert shown_branch({"messages": messages, "current": None}) == set()


def test_a_second_search_reads_what_may_contain_the_words_alone(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [store.create("me", talk(f"Talk {number}", messages=[message(A, content=f"river{number} 江河{number}")]))
            for number in range(10)]  # fmt: skip
    read: list[str] = []
    whole = ConversationStore._read

    def counted(self: ConversationStore, path: Path) -> Any:
        read.append(path.stem)
        return whole(self, path)

    def titles(query: str) -> list[str]:
        read.clear()
        return [row["title"] for row in store.page("me", query).conversations]

    store.page("me")
    monkeypatch.setattr(ConversationStore, "_read", counted)
    assert titles("RIVER3") == ["Talk 3"]
    assert len(read) == 10
    assert titles("RIVER3") == ["Talk 3"]
    assert read == [made[3]["id"]]
    assert titles("江河7 talk") == ["Talk 7"]
    assert len(read) == 1
    assert titles("7") == ["Talk 7"]
    assert not titles("ocean")
    assert not read
    store.change("me", made[5]["id"], {"version": 1, "title": "The Ocean"})
    assert titles("ocean") == ["The Ocean"]
    assert set(read) == {made[5]["id"]}
    store.delete("me", made[5]["id"])
    assert not titles("ocean")
    assert len(titles("r")) == 9


@given(
    st.lists(st.text(alphabet="abßİ江 \U0001f600x", max_size=12), min_size=1, max_size=4),
    st.text(alphabet="abßİ江 \U0001f600x", max_size=8),
)
def test_no_matching_text_is_skipped(texts: list[str], query: str) -> None:
    words = query_words(query)
    if words and find_hit(texts, words) is not None:
        assert may_contain(signature_of(texts), words)
