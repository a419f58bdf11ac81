"""The progress bar: items are counted, bytes are a percentage; nothing is drawn without a terminal."""

import io
from types import SimpleNamespace

import pytest

from sporelm.cli import progress_line
from sporelm.cli.progress_line import ProgressLine


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(progress_line, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setattr(progress_line, "terminal_width", lambda stream: 80)
    return terminal


def test_items_are_counted(stderr: Terminal) -> None:
    ProgressLine()("compiling kernels", 12, 40)
    assert stderr.getvalue() == f"\rcompiling kernels 12/40 [{'#' * 7}{' ' * 17}]  30%"


def test_bytes_are_a_percentage(stderr: Terminal) -> None:
    ProgressLine()("load", 5 << 20, 10 << 20)
    assert stderr.getvalue() == f"\rload [{'#' * 12}{' ' * 12}]  50%"


def test_samples_of_a_benchmark_are_not_counted_twice(stderr: Terminal) -> None:
    ProgressLine()("tg128: sample 2 of 5", 3, 12)
    assert stderr.getvalue() == f"\rtg128: sample 2 of 5 [{'#' * 6}{' ' * 18}]  25%"


def test_a_narrow_terminal_has_no_bar(stderr: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "terminal_width", lambda stream: 40)
    ProgressLine()("compiling kernels", 12, 40)
    assert stderr.getvalue() == "\rcompiling kernels 12/40  30%"


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        progress("compiling kernels", 12, 40)
    assert capsys.readouterr().err == ""
