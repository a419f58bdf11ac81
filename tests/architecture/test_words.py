"""Retired names and phrases do not come back; the number that is left of them may only fall."""

from pathlib import Path

import pytest

from architecture import word_lint
from architecture.ratchet import check, lowered, risen
from architecture.sources import Source, source


def test_no_retired_word_comes_back() -> None:
    check("retired words", word_lint.by_area())


def found(text: str, path: str = "src/sporelm/cli/run.py") -> list[str]:
    return [phrase for _, phrase, _ in word_lint.in_text(path, text)]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("the body is no JSON", "is no"),
        ("Those are\n    # no tensors", "are no"),
        ('"its vocabulary is "\n    f"no list"', "is no"),
        ("def test_a_file_that_is_no_model", "is_no"),
        ("port 80 cannot be had", "be had"),
        ("compute it anew.", "anew"),
        ("two blocks, of which one is dense", "of which"),
        ("class Dormitory:", "dormitory"),
        ("self._twin", "twin"),
        ("a made-up model", "made-up"),
    ],
)
def test_phrases_are_found(text: str, phrase: str) -> None:
    assert found(text) == [phrase]


@pytest.mark.parametrize(
    "text",
    [
        "there is no file",
        "There\nare no tensors",
        "if there_is_no_config",
        "it is no longer read",
        "is not a list",
        "the value is none",
        "an embedded model",
        "a no-op is no-one's",
        "once more than one",
        "kinds, of whichever kind",
    ],
)
def test_plain_english_is_not_found(text: str) -> None:
    assert found(text) == []


def test_a_team_of_authors_is_not_a_thread_pool() -> None:
    path = "src/sporelm/ops/gated_delta_rule.py"
    assert found("a decay for each channel (Kimi Team\n    2025)", path) == []
    assert found("the team waits, and 2025 items are left", path) == ["team"]
    assert found("ten items for each team", path) == ["team"]


def test_some_words_are_private_in_one_package_only() -> None:
    assert found("the threads of a team", "src/sporelm/backends/cpu/runtime/pool.py") == ["team"]
    assert found('WORDS = "name president team minute"', "src/sporelm/bench/serving/random_prompts.py") == []
    assert found("a sleeping session sleeps", "src/sporelm/engine/kv/pages.py") == ["sleeps"]
    assert found("a sleeping session sleeps", "src/sporelm/cli/chat.py") == []
    assert word_lint.retired("src/sporelm/engine/request.py", "field", "salt")
    assert not word_lint.retired("src/sporelm/text/template.py", "field", "salt")


@pytest.mark.parametrize(
    ("kind", "name", "is_retired"),
    [
        ("function", "made", True),
        ("method", "_kept", True),
        ("class", "Told", True),
        ("class", "_Work", True),
        ("parameter", "found", False),
        ("constant", "MOST_IDS", True),
        ("parameter", "least", True),
        ("function", "almost", False),
        ("class", "PartFiles", False),
    ],
)
def test_names(kind: str, name: str, is_retired: bool) -> None:
    assert bool(word_lint.retired("src/sporelm/cli/run.py", kind, name)) == is_retired


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file in a tree of its own."""
    monkeypatch.setattr("architecture.sources.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.touch()
    return path


def test_definitions_and_docstrings_of_a_file(module: Path) -> None:
    module.write_text(
        '"""A module."""\n'
        "class Told:\n"
        '    """What was told."""\n'
        "    said: int\n"
        "    twin = 1  # old name: written to session files\n"
        "    def kept(self, gone): self.left, _ = 1, 2\n"
        "def load():\n"
        "    found = left = 3\n"
    )
    found = [(each.line, each.word) for each in word_lint.in_file(module)]
    assert sorted(found) == [
        (2, "class Told"),
        (3, 'docstring "What ..."'),
        (4, "field said"),
        (6, "attribute left"),
        (6, "method kept"),
    ]


def test_imports_are_read_where_they_stand(module: Path) -> None:
    module.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    import a.b\n"
        "else:\n"
        "    import c\n"
        "def load():\n"
        "    with open('x'):\n"
        "        from d import e, f as g\n"
        "    import_module('h.i')\n"
    )
    file: Source = source(module)
    found = [(each.module, each.names, each.is_typing) for each in file.imports]
    assert found == [
        ("typing", ("TYPE_CHECKING",), False),
        ("a.b", (), True),
        ("c", (), False),
        ("d", ("e", "f"), False),
        ("h.i", (), False),
    ]


@pytest.fixture
def ratchet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratchet of one subject with two areas."""
    file = tmp_path / "ratchet.json"
    file.write_text('{"words": {"docs": 2, "src/sporelm/cli": 3}}')
    monkeypatch.setattr("architecture.ratchet.FILE", file)


@pytest.mark.usefixtures("ratchet")
def test_the_ratchet_lets_counts_fall_alone() -> None:
    assert risen("words", {"docs": ["a"], "src/sporelm/cli": ["b"] * 3}) == ""
    assert risen("words", {"docs": ["page:1: a", "page:2: b", "page:3: c"]}).splitlines()[1:] == [
        "  page:1: a",
        "  page:2: b",
        "  page:3: c",
    ]
    assert "src/sporelm/new: 1; ratchet.json allows 0" in risen("words", {"src/sporelm/new": ["a"]})


@pytest.mark.usefixtures("ratchet")
def test_the_ratchet_is_written_lower() -> None:
    assert lowered("words", {"docs": 1, "src/sporelm/cli": 3}) == {"docs": 1, "src/sporelm/cli": 3}
    assert lowered("words", {"docs": 1, "src/sporelm/cli": 1}, ["docs"]) == {"docs": 1, "src/sporelm/cli": 3}
    assert lowered("words", {"docs": 1, "src/sporelm/remote": 3}) == {
        "docs": 1,
        "src/sporelm/remote": 3,
    }  # a folder renamed
    with pytest.raises(ValueError, match="6 is more than the 5"):
        lowered("words", {"docs": 1, "src/sporelm/remote": 5})
