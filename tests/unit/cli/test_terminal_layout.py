"""Pages, tables and help on terminals of any width, and unchanged in files and pipes."""

import io
import re
import sys
from pathlib import Path

import pytest

from gguf_samples import sample
from sporelm.cli import main
from sporelm.cli.terminal_layout import columns_of, fold, format_table, label_text, terminal_width

if sys.platform == "win32":
    pytest.skip("COLUMNS stands for the terminal's size", allow_module_level=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str, terminal: bool = True) -> list[str]:
    """Lines that a command prints."""
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", stream)
    assert main.main(list(words)) == 0
    return stream.getvalue().splitlines()


def check_fits(lines: list[str], columns: int) -> None:
    """Every line fits, unless it holds one word alone or a figure with its unit."""
    for line in lines:
        assert columns_of(line) <= columns or len(line.split()) == 1, line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", ["overview", *main.COMMANDS])
@pytest.mark.parametrize("columns", [20, 40, 70])
def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    words = [] if name == "overview" else name.split()
    narrow = run(monkeypatch, columns, *words, "--help")
    check_fits(narrow, columns)
    wide = main.format_overview() if name == "overview" else main.load_command(name).make_parser().format_help()
    assert "".join(narrow).replace(" ", "") == "".join(wide.split())
    assert run(monkeypatch, columns, *words, "--help", terminal=False) == wide.splitlines()
    assert run(monkeypatch, 200, *words, "--help") == wide.splitlines()


def test_files_and_machines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = sample(tmp_path / "model.gguf")
    for words in (["gguf", "show", str(path)], ["doctor"], ["doctor", "--models"], ["info", str(path), "--no-speed"]):
        narrow = run(monkeypatch, 20, *words)
        plain = [re.sub(r"\x1b\[\d*m", "", line) for line in narrow]
        check_fits(plain, 20)
        piped = run(monkeypatch, 20, *words, terminal=False)
        assert max(map(len, piped)) > 20
        said, folded = (set(re.findall(r"[^\W\d]+", "\n".join(lines))) for lines in (piped, plain))
        assert said <= folded  # figures of free memory differ between two calls


def test_figures_keep_their_units() -> None:
    lines = fold("  61 tensors      35.1 k values  140.5 kB   0.1%", 20)
    assert lines == ["  61 tensors 35.1 k", "    values 140.5 kB", "    0.1%"]
    assert fold("a b", None) == fold("a b", 3) == ["a b"]
    assert fold("/a/path/that/is/longer/than/the/terminal", 20) == ["/a/path/that/is/longer/than/the/terminal"]
    assert fold("模型模型 模型模型", 10) == ["模型模型", "  模型模型"]


def test_a_table_becomes_records() -> None:
    rows = [("name", "size", "type"), ("smollm2", "98.4 MB", "Q4_1")]
    assert format_table(rows, None) == format_table(rows, 80) == ["name     size     type", "smollm2  98.4 MB  Q4_1"]
    assert format_table(rows, 20) == ["smollm2", " size  98.4 MB", " type  Q4_1"]
    assert format_table(rows, 12) == ["smollm2", " size", "   98.4 MB", " type Q4_1"]


def test_text_stands_below_its_label_where_it_is_narrow() -> None:
    text = "32 layers of some model"
    assert label_text("architecture", text, 15, None) == ["architecture   32 layers of some model"]
    assert label_text("architecture", text * 2, 15, 40)[1].startswith(" " * 15)
    assert label_text("architecture", text, 15, 20) == ["architecture", "  32 layers of some", "  model"]


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert terminal_width(io.StringIO()) is None
    assert terminal_width(Terminal()) == 20


def test_measurements_are_records_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from sporelm.bench import bench_rows
    from sporelm.cli import bench

    class Row:
        def cells(self) -> list[str]:
            return [f"{at}23.4 tok/s" for at in range(len(bench_rows.TABLE_COLUMNS))]

    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", Terminal())
    arguments = bench.make_parser().parse_args([])
    lines = bench.render([Row()], arguments).splitlines()  # type: ignore[list-item]
    check_fits(lines, 20)
    for at in range(len(bench_rows.TABLE_COLUMNS)):
        assert sum(f"{at}23.4 tok/s" in line for line in lines) >= 1
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert max(map(len, bench.render([Row()], arguments).splitlines())) > 60  # type: ignore[list-item]
