"""Searches in stored conversations: what they find, and what they need not read."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.serve.conversation_search import hit, may_hold, signature, words_of
from sporelm.serve.conversations import ConversationStore
from unit.serve.test_conversations import A, message, talk


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "kept")


def test_search_wants_every_word(store: ConversationStore) -> None:
    store.create("me", talk("Rivers", messages=[message(A, content="The Danube is LONG, " + "x" * 500)]))
    store.create("me", talk("Mountains"))
    assert [row["title"] for row in store.page("me", "danube long").conversations] == ["Rivers"]
    assert "Danube is LONG" in store.page("me", "danube").conversations[0]["snippet"]
    assert [row["title"] for row in store.page("me", "mount good").conversations] == ["Mountains"]
    assert store.page("me", "danube mountains").total == 0


def test_a_second_search_reads_what_may_hold_the_words_alone(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [store.create("me", talk(f"Talk {number}", messages=[message(A, content=f"river{number} 江河{number}")]))
            for number in range(10)]  # fmt: skip
    read: list[str] = []
    whole = ConversationStore._read

    def counted(self: ConversationStore, path: Path) -> Any:
        read.append(path.stem)
        return whole(self, path)

    def found(query: str) -> list[str]:
        read.clear()
        return [row["title"] for row in store.page("me", query).conversations]

    store.page("me")
    monkeypatch.setattr(ConversationStore, "_read", counted)
    assert found("RIVER3") == ["Talk 3"]
    assert len(read) == 10
    assert found("RIVER3") == ["Talk 3"]
    assert read == [made[3]["id"]]
    assert found("江河7 talk") == ["Talk 7"]
    assert len(read) == 1
    assert found("7") == ["Talk 7"]
    assert not found("ocean")
    assert not read
    store.change("me", made[5]["id"], {"version": 1, "title": "The Ocean"})
    assert found("ocean") == ["The Ocean"]
    assert set(read) == {made[5]["id"]}
    store.delete("me", made[5]["id"])
    assert not found("ocean")
    assert len(found("r")) == 9


@given(
    st.lists(st.text(alphabet="abßİ江 \U0001f600x", max_size=12), min_size=1, max_size=4),
    st.text(alphabet="abßİ江 \U0001f600x", max_size=8),
)
def test_no_text_that_holds_the_words_is_passed_over(texts: list[str], query: str) -> None:
    words = words_of(query)
    if words and hit({}, texts, words) is not None:
        assert may_hold(signature(texts), words)
