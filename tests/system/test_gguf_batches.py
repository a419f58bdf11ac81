"""One bad model of several costs a line and exit code 1, and the others are done; outputs that cannot be written."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import imatrix_models as models
from gguf_models import contents, write_model
from sporelm.cli.main import main
from sporelm.files.gguf import open_gguf
from sporelm.quant import F16
from system.processes import SECONDS, command, environment, one_line

FULL = Path("/dev/full")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0rubbish")
    (tmp_path / "out").mkdir()
    return write_model(tmp_path / "good.gguf", matrices=F16)


@pytest.mark.parametrize("missing", ["{d}/missing.gguf", "{d}/nomatch*.gguf", "{d}/bad.gguf"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("tool", ["show", "verify"])
def test_looking(good: Path, capsys: pytest.CaptureFixture[str], missing: str, last: bool, tool: str) -> None:
    words = [str(good), missing.format(d=good.parent)]
    assert main(["gguf", tool, *(words if last else words[::-1]), "--json"]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert str(good) in [entry["path"] for entry in found]
    if tool == "show" or "bad" not in missing:  # of a damaged file verify tells its findings
        assert Path(words[1]).name in one_line(printed.err)


@pytest.mark.parametrize("words", [["quantize", "-t", "Q8_0"], ["convert", "-x", "cast:linear:Q8_0"]])
@pytest.mark.parametrize("name", ["bad.gguf", "missing.gguf"])
def test_changing(good: Path, capsys: pytest.CaptureFixture[str], words: list[str], name: str) -> None:
    files = [str(good.with_name(name)), str(good)]
    out = good.with_name("out")
    assert main(["gguf", words[0], *files, *words[1:], "-o", str(out), "--json"]) == 1
    printed = capsys.readouterr()
    assert name in one_line(printed.err)
    (written,) = json.loads(printed.out)["files"]
    assert contents(Path(written["path"]))["blk.0.ffn_up.weight"][0] == "Q8_0"
    assert list(out.iterdir()) == [Path(written["path"])]


def test_a_fault_met_while_writing_stops_one_model(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(good.read_bytes())
    with open_gguf(good) as found:
        at = found.tensors["blk.0.ffn_up.weight"].offset
    content[at : at + 2] = b"\xff\x7f"  # NaN in F16
    good.with_name("bad.gguf").write_bytes(content)
    out = good.with_name("out")
    words = ["gguf", "convert", str(good.with_name("bad.gguf")), str(good), "-x", "cast:linear:Q8_0", "-o", str(out)]
    assert main(words) == 1
    assert "NaN" in one_line(capsys.readouterr().err)
    assert [path.name for path in out.iterdir()] == ["good.gguf"]


def test_a_lone_failure_prints_nothing_else(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gguf", "convert", str(good.with_name("bad.gguf")), "-x", "sort", "-o", str(good.with_name("out"))]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert (printed.out, "bad.gguf" in one_line(printed.err)) == ("", True)


def test_imatrix_checks_before_it_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("sporelm.tools.imatrix.observe_model", load)
    model, text = models.write(tmp_path / "m.gguf"), tmp_path / "t"
    text.write_text("")
    words = ["gguf", "imatrix", str(model), str(text), "-o"]
    assert main([*words, str(tmp_path / "i.gguf")]) == 1
    assert "is empty: give a text to run the model over" in one_line(capsys.readouterr().err)
    text.write_text(models.TEXT)
    assert main([*words, str(tmp_path / "no" / "i.gguf")]) == 1
    assert "there is no folder" in one_line(capsys.readouterr().err)
    monkeypatch.setattr("sporelm.tools.output_file.os.access", lambda path, mode: False)
    assert main([*words, str(tmp_path / "i.gguf")]) == 1
    assert "may not be written to" in one_line(capsys.readouterr().err)


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["show"], ["show", "--json"], ["verify"]])
def test_a_full_disk_behind_standard_output(good: Path, words: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            command("gguf", words[0], good, *words[1:]),
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert one_line(done.stderr) == (
        f"spore: standard output: cannot be written ({os.strerror(28)}). Free disk space, or write elsewhere."
    )


def test_a_file_whose_name_begins_with_a_dash(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(good.parent)
    good.rename("-dash.gguf")
    assert main(["gguf", "show", "-dash.gguf"]) == 2
    assert "for the file of that name write './-dash.gguf'" in one_line(capsys.readouterr().err)
    assert main(["gguf", "show", "./-dash.gguf"]) == 0
