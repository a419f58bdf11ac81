"""Colours are for terminals whose user wants them."""

import io

import pytest

from sporelm.cli.gguf_text import Page
from sporelm.cli.terminal_text import supports_colors


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": "0"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({}, True),
    ],
)
def test_colors_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert supports_colors(Terminal()) == expected
    assert not supports_colors(io.StringIO())
    monkeypatch.setattr("sys.stdout", Terminal())
    assert Page().has_colors == expected
    assert Page("always").has_colors
    assert not Page("never").has_colors
